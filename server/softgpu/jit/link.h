// Several parsed PTX files as one image: symbols resolved, data laid out, per-kernel facts collected. No LLVM
// here.
//
// Immutable after link(); safe from any thread.
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

// A pointer to a device function, as a kernel sees it, is no host address but kFunctionAddressBase + 16 *
// index: calls through it are checked against the image's table, and it means the same in every kernel of the
// image.
constexpr uint64_t kFunctionAddressBase = 0x0F00'0000'0000'0000;
constexpr uint64_t kFunctionAddressStep = 16;

struct Symbol {
  enum class Kind : uint8_t { undefined, function, data, shared, builtin };
  Kind kind = Kind::undefined;
  uint32_t index = 0;  // of a builtin: among builtins()
};

struct LinkedFunction {
  const ptx::Function* tree = nullptr;
  uint32_t file = 0;
  FunctionFacts facts;
  std::unordered_map<uint32_t, Symbol> variables;  // its own .shared, .global and .const variables, by index
  bool address_taken = false;
};

struct DataVariable {
  const ptx::Variable* tree = nullptr;
  uint32_t file = 0;
  uint64_t offset = 0;
};

// What CUDA keeps for itself in a block's shared memory (compute capability 8.0 and later); cooperative
// groups use it. Here only kernels that ask for it have it.
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
  std::vector<uint32_t> functions;                        // reached from it, itself first
  std::unordered_map<uint32_t, uint32_t> shared_offsets;  // shared variable -> offset in the window
  uint32_t reserved_shared = 0;                           // offset of the reserved part, when used
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
  bool uses_device_runtime = false;  // a kernel reaches a call of it

  Symbol resolve(uint32_t file, std::string_view name) const;
  // The value of a pointer to a symbol for data segments that lie at `address`; nothing for undefined names.
  std::optional<uint64_t> address_of(uint32_t file, std::string_view name, uint64_t address) const;
  void write_data(std::span<std::byte> image, uint64_t address) const;
  std::string where(uint32_t file, uint32_t line) const;  // "line 12" or "file 2, line 12"
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
