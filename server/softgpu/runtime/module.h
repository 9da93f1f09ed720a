// Modules: instances of a compiled program in a context, each with its own globals. Functions: a module's
// kernels.
//
// A module owns its data segment, unless its creator passes one. unload() frees it once, even if functions
// and queued launches still refer to the code: functions keep the code alive, not the data. Thread-safe.
#pragma once
#include <atomic>
#include <climits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/exec/kernel_services.h"
#include "server/softgpu/exec/recycled.h"
#include "server/softgpu/jit/program.h"
#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/op.h"
#include "server/softgpu/runtime/texture_reference.h"

namespace gpupool::softgpu {

// The attributes of a kernel that a program has set. A library kernel has settings per device, and its
// function in a context has settings on top: attributes set by cuFuncSetAttribute override later
// cuKernelSetAttribute calls.
class FunctionSettings {
 public:
  explicit FunctionSettings(std::shared_ptr<const FunctionSettings> of_kernel = nullptr)
      : of_kernel_(std::move(of_kernel)) {
    for (auto& value : values_) value = kUnset;
  }
  void set(int attribute, int value) { values_[attribute] = value; }
  int get(int attribute, int otherwise) const {
    const int value = values_[attribute].load(std::memory_order_relaxed);
    if (value != kUnset) return value;
    return of_kernel_ ? of_kernel_->get(attribute, otherwise) : otherwise;
  }

 private:
  static constexpr int kUnset = INT_MIN;
  const std::shared_ptr<const FunctionSettings> of_kernel_;
  std::atomic<int> values_[CU_FUNC_ATTRIBUTE_MAX];
};

// Attributes of a kernel (CU_FUNC_ATTRIBUTE_*), for functions and library kernels.
CUresult kernel_attribute(const KernelInfo& kernel, const FunctionSettings& settings,
                          uint32_t compute_capability, CUfunction_attribute attribute, int* value);
CUresult set_kernel_attribute(const KernelInfo& kernel, FunctionSettings& settings,
                              CUfunction_attribute attribute, int value);
int max_dynamic_shared(const KernelInfo& kernel, const FunctionSettings& settings);
std::array<int, 3> required_cluster(const KernelInfo& kernel,
                                    const FunctionSettings& settings);  // zeros: none
// The number of blocks of `block_size` threads that a multiprocessor holds at once, by the device's limits.
int blocks_per_multiprocessor(const KernelInfo& kernel, const FunctionSettings& settings, int block_size,
                              size_t dynamic_shared);

class Function final : public Object, public KernelServices {
 public:
  static constexpr HandleKind kKind = HandleKind::function;
  Function(Ref<Context> context, std::shared_ptr<const Program> program, const KernelInfo& kernel,
           uint64_t module_handle, uint64_t data_address, std::shared_ptr<FunctionSettings> settings);

  Context& context() const { return *context_; }
  const KernelInfo& kernel() const { return kernel_; }
  FunctionSettings& settings() const { return *settings_; }
  uint64_t module_handle() const { return module_handle_; }
  uint64_t data_address() const { return data_address_; }
  // Loads the function and returns its machine code, which the first call compiles. CUDA_ERROR_INVALID_PTX if
  // it does not compile; the reason goes to stderr and the driver's log.
  CUresult code(KernelCode* code);
  // Called where NVIDIA's driver loads a function. The first call waits for the context's work (rule
  // lazy_loading).
  void load();
  // Services for the CUDA device runtime; null if the program does not use it.
  const KernelServices* services() const { return program_->uses_device_runtime() ? this : nullptr; }
  std::optional<uint32_t> parameter_bytes(uint64_t kernel) const override;
  bool fits(uint64_t kernel, const GridRequest& request) const override;
  bool prepare(uint64_t kernel, GridRequest& request) const override;
  std::optional<int> kernel_attribute(uint64_t kernel, int attribute) const override;
  std::optional<int> blocks_per_multiprocessor(uint64_t kernel, int threads,
                                               uint64_t dynamic_shared) const override;
  int device() const override;
  int device_count() const override;
  std::optional<int> device_attribute(int device, int attribute) const override;
  std::optional<uint64_t> limit(int limit) const override;
  int version() const override;
  bool loaded() const { return loaded_.load(std::memory_order_acquire); }
  uint64_t handle = 0;                      // set before the function is published
  std::atomic<uint64_t> library_kernel{0};  // handle of the library kernel behind it; 0: unknown

  // Launch state of the deprecated calls cuParamSet*, cuFuncSetBlockShape and cuFuncSetSharedSize.
  struct LegacyLaunch {
    std::vector<std::byte> params;
    uint32_t block[3] = {1, 1, 1};
    uint32_t shared_bytes = 0;
  };
  std::mutex legacy_launch_mutex;
  LegacyLaunch legacy_launch;  // guarded by legacy_launch_mutex

 private:
  const Ref<Context> context_;
  const std::shared_ptr<const Program> program_;
  const KernelInfo& kernel_;
  const uint64_t module_handle_;
  const uint64_t data_address_;
  const std::shared_ptr<FunctionSettings> settings_;
  std::mutex code_mutex_;
  std::atomic<bool> loaded_;
  std::atomic<bool> compiled_{false};
  KernelCode code_;
};

class Module final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::module;
  // Returns the settings for a kernel's function. A null pointer gives each function settings of its own.
  using SettingsOf = std::shared_ptr<FunctionSettings> (*)(void* user, const KernelInfo& kernel);
  // `data`: the address of an initialised data segment that the caller owns; 0: the module allocates its own.
  static CUresult create(Ref<Context> context, std::shared_ptr<const Program> program, uint64_t data,
                         SettingsOf settings_of, void* user, Ref<Module>* module);

  Context& context() const { return *context_; }
  const Program& program() const { return *program_; }
  uint64_t handle() const { return handle_; }
  // Returns null if no kernel has this name.
  Ref<Function> function(std::string_view name);
  // CUDA_ERROR_NOT_FOUND if no global has this name.
  CUresult global(std::string_view name, uint64_t* address, uint64_t* size) const;
  // CUDA_ERROR_NOT_FOUND if no texture or surface reference has this name.
  CUresult reference(std::string_view name, Ref<TextureReference>* found);
  CUresult reference(std::string_view name, Ref<SurfaceReference>* found);
  // Frees the data segment, and invalidates the handles of the module, its functions and its references.
  void unload();

 private:
  Module(Ref<Context> context, std::shared_ptr<const Program> program)
      : context_(std::move(context)), program_(std::move(program)) {}
  const Ref<Context> context_;
  const std::shared_ptr<const Program> program_;
  uint64_t handle_ = 0;
  uint64_t data_address_ = 0;
  bool owns_data_ = false;
  std::mutex mutex_;
  bool unloaded_ = false;
  std::map<std::string, Ref<Function>, std::less<>> functions_;
  std::map<std::string, Ref<TextureReference>, std::less<>> textures_;  // those that programs have looked up
  std::map<std::string, Ref<SurfaceReference>, std::less<>> surfaces_;

  template <class Reference>
  CUresult reference(std::map<std::string, Ref<Reference>, std::less<>>& references, bool surface,
                     std::string_view name, Ref<Reference>* found);
};

// Not part of CUDA, for poold's workers: the next program with this variable that is loaded gets it at this
// address, if that is free, for a session that comes from another process. Wishes that would exceed 16 MiB
// in all are ignored. Any thread.
void wish_variable(std::string_view name, uint64_t address);

// Allocates and initialises a program's globals on a device, and adds them to the memory map as those of a
// context (a handle, or 0). *address is 0 if the program has no globals.
CUresult place_globals(const Program& program, Device& device, uint64_t context, uint64_t* address);
void remove_globals(const Program& program, Device& device, uint64_t address);

// A launch of a kernel.
class GridOp final : public Op, public Recycled<GridOp> {
 public:
  // `kernel`: the handle of the library kernel that the program launched; 0: it launched the function.
  GridOp(Ref<Function> function, GridRequest request, uint64_t kernel)
      : function_(std::move(function)), request_(std::move(request)), kernel_(kernel) {}
  Ref<Op> clone() const override { return make_ref<GridOp>(function_, request_, kernel_); }
  Cost cost() const override { return Cost::launch; }
  uint64_t kernel() const { return kernel_; }
  const Function& function() const { return *function_; }
  const GridRequest& request() const { return request_; }  // until start()

 private:
  void start() override;
  void finished(const GridResult& result);
  const Ref<Function> function_;
  GridRequest request_;
  const uint64_t kernel_;
};

}  // namespace gpupool::softgpu
