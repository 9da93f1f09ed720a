// Links parsed PTX files into an image: resolves symbols, lays out data, and collects facts about kernels. No
// LLVM here. Used by compile() and the code generator. An Image is immutable after link(), and thread-safe.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "server/softgpu/jit/analysis.h"
#include "server/softgpu/jit/program.h"
#include "server/softgpu/ptx/parser.h"

namespace gpupool::softgpu {

// Kernels see a pointer to a device function as kFunctionAddressBase + 16 * index, not as a host address:
// calls through it are checked against the image's table, and it has the same meaning in all kernels of the
// image.
constexpr uint64_t kFunctionAddressBase = 0x0F00'0000'0000'0000;
constexpr uint64_t kFunctionAddressStep = 16;

struct Symbol {
  enum class Kind : uint8_t { undefined, function, data, shared, builtin };
  Kind kind = Kind::undefined;
  uint32_t index = 0;  // for a builtin, an index into builtins()
};

struct LinkedFunction {
  const ptx::Function* tree = nullptr;
  uint32_t file = 0;
  FunctionFacts facts;
  // .shared, .global and .const variables declared in the function, by index
  std::unordered_map<uint32_t, Symbol> variables;
  bool address_taken = false;
};

struct DataVariable {
  const ptx::Variable* tree = nullptr;
  uint32_t file = 0;
  uint64_t offset = 0;
};

// Shared memory that CUDA reserves in each block (compute capability 8.0 and later) and cooperative groups
// use. Here only kernels that refer to it have it.
constexpr uint32_t kReservedSharedBytes = 1024;

struct SharedVariable {
  std::string_view name;
  uint64_t size = 0;
  uint32_t alignment = 1;
  bool is_dynamic = false;
};

struct LinkedKernel {
  uint32_t function = 0;
  KernelInfo info;
  std::vector<uint32_t> functions;                        // all functions that it reaches, itself first
  std::unordered_map<uint32_t, uint32_t> shared_offsets;  // shared variable -> offset in the window
  uint32_t reserved_shared = 0;                           // offset of the reserved part, if used
};

class Image {
 public:
  std::vector<std::string> texts;
  std::vector<ptx::File> files;
  std::vector<LinkedFunction> functions;  // definitions
  std::vector<DataVariable> data;
  std::vector<SharedVariable> shared;
  std::vector<LinkedKernel> kernels;
  uint64_t data_bytes = 0;
  uint64_t data_alignment = 256;
  bool uses_device_runtime = false;  // some kernel can reach a call of the device runtime

  Symbol resolve(uint32_t file, std::string_view name) const;
  // Returns the value of a pointer to a symbol if the data segment lies at `address`; nullopt for undefined
  // names.
  std::optional<uint64_t> address_of(uint32_t file, std::string_view name, uint64_t address) const;
  void write_data(std::span<std::byte> image, uint64_t address) const;
  std::string where(uint32_t file, uint32_t line) const;                   // "line 12" or "file 2, line 12"
  std::string where(const LinkedFunction& function, uint32_t line) const;  // "kernel k, line 12"

 private:
  friend class Linker;
  std::vector<std::unordered_map<std::string_view, Symbol>> local_;
  std::unordered_map<std::string_view, Symbol> global_;
  std::unordered_map<std::string_view, std::string_view> aliases_;
};

std::variant<std::shared_ptr<const Image>, CompileError> link(std::span<const std::string_view> texts,
                                                              const CompileOptions& options);

}  // namespace gpupool::softgpu
