// A compiled set of PTX files: kernels, globals and their machine code. Made by compile(), used by runtime/.
//
// A Program is immutable after compile(), shared by all module instances made from the same image, and
// thread-safe. It holds no device memory: each module instance allocates data_bytes() of device memory, lets
// the Program write the initial image there, and passes the address with every launch
// (BlockContext::module_data).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/softgpu/exec/abi.h"
#include "server/softgpu/jit/convergence.h"

namespace gpupool::softgpu {

struct KernelParameter {
  uint32_t offset;  // bytes from the start of the packed parameter block
  uint32_t size;    // bytes
  uint32_t alignment;
};

struct KernelInfo {
  std::string name;
  std::vector<KernelParameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t constant_bytes = 0;  // total size of the .const variables that it uses
  uint32_t ptx_target = 0;      // .target of the PTX file that contains the kernel: major * 10 + minor
  uint32_t local_bytes = 0;     // per thread, as CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES reports it
  uint32_t registers = 0;       // estimate, for occupancy; at least 1
  uint32_t max_threads = kMaxThreadsPerBlock;  // from .maxntid or .reqntid, else 1024
  std::array<uint32_t, 3> required_block{};    // .reqntid, zeros when absent
  std::array<uint32_t, 3> required_cluster{};  // .reqnctapercluster, zeros when absent
  bool needs_cluster = false;                  // .explicitcluster: a launch must give the cluster's size
  bool blocks_are_clusters = false;            // the grid of a launch is counted in clusters
  bool synchronises = false;                   // needs one fiber per thread
};

struct GlobalInfo {
  std::string name;
  uint64_t offset = 0;  // from the start of the data segment
  uint64_t size = 0;    // bytes
  bool is_constant = false;
  bool is_managed = false;
};

// A texture or surface reference: eight bytes of the data segment that hold the texture value
// (exec/texture.h).
struct ReferenceInfo {
  std::string name;
  uint64_t offset = 0;
  bool is_surface = false;
};

enum class CompileErrorCode {
  invalid_ptx,              // CUDA_ERROR_INVALID_PTX: syntax, unknown instruction or operand
  unsupported_ptx_version,  // CUDA_ERROR_UNSUPPORTED_PTX_VERSION: .version or .target too new
  unresolved_symbol,        // CUDA_ERROR_INVALID_IMAGE: a name is undefined after linking
  internal,  // CUDA_ERROR_JIT_COMPILER_NOT_FOUND: LLVM rejected the generated code, or out of memory
};
struct CompileError {
  CompileErrorCode code;
  std::string message;  // one line: the problem, the instruction's text, the file's index and line
};

class CodeFile;

struct CompileOptions {
  uint32_t compute_capability = 90;  // of the device, e.g. 90 for 9.0; PTX with a newer .target is rejected
  bool optimise = true;
  // Simulates lock step for code that relies on it (docs/adr/0033).
  Convergence converge_warps = Convergence::found;
  std::shared_ptr<CodeFile> code_file = nullptr;  // cache of compiled code; null: none
};

class Program {
 public:
  virtual ~Program() = default;
  virtual std::span<const KernelInfo> kernels() const = 0;
  virtual std::span<const GlobalInfo> globals() const = 0;
  virtual std::span<const ReferenceInfo> references() const = 0;
  virtual const KernelInfo* find_kernel(std::string_view name) const = 0;
  // Returns the kernel whose address in this program's code is `address`; null if there is none.
  virtual const KernelInfo* kernel_at(uint64_t address) const = 0;
  virtual bool uses_device_runtime() const = 0;  // some kernel calls it (exec/device_runtime.h)
  virtual const GlobalInfo* find_global(std::string_view name) const = 0;
  virtual uint64_t data_bytes() const = 0;
  virtual uint64_t data_alignment() const = 0;
  // Writes the initial content of the data segment into `image` (data_bytes() long) for a segment at device
  // address `address`; pointers between globals are relocated.
  virtual void write_data(std::span<std::byte> image, uint64_t address) const = 0;
  // Returns the machine code of a kernel; compiles it at first use, which may take milliseconds or more.
  // Thread-safe.
  virtual std::variant<KernelCode, CompileError> code(const KernelInfo& kernel) const = 0;
  // Returns true if the code came from CompileOptions::code_file.
  virtual bool came_from_cache(const KernelInfo& kernel) const = 0;
};

// Parses, checks, links and prepares one or several PTX texts (several: the parts of an -rdc=true image).
// Unsupported code is rejected here, not at launch.
std::variant<std::shared_ptr<const Program>, CompileError> compile(
    std::span<const std::string_view> ptx_texts, const CompileOptions& options);

}  // namespace gpupool::softgpu
