// Loads the client's modules and libraries. Checks images before the driver sees them, because the driver
// trusts the sizes in an image's headers, and owns what must live as long as the loaded object: the
// compiler's options and log buffers, and parameter layouts for drivers that do not report them. Executor's
// thread only.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "protocol/images/fatbin.h"
#include "protocol/images/kernel_params.h"
#include "protocol/wire/images.h"
#include "server/worker/device/device_api.h"

namespace gpupool::worker {

constexpr size_t kJitLogBytes = 16 * 1024;  // bytes of each of the two logs

// The device's compute capability; nullopt: unknown.
std::optional<cuda::CodeTarget> code_target(const DeviceApi& api, CUdevice device);

class Images {
 public:
  explicit Images(const DeviceApi& api) : api_(api) {}

  struct Loaded {
    CUresult result = CUDA_SUCCESS;
    void* object = nullptr;
    bool admitted = false;
    // The JIT compiler's logs; if both are empty and the image has no code for the device, `log` is the
    // reason.
    std::string log, info;
    float milliseconds = 0;  // compile time
  };
  using Options = std::span<const wire::JitOption>;  // numeric options only
  // Called after the image was parsed and before the driver gets it; an error prevents loading.
  using Admit = std::function<CUresult(const cuda::Image&)>;
  // `device`: the device of the current context.
  Loaded load_module(uint64_t handle, CUdevice device, std::span<const std::byte> bundle, Options options,
                     const Admit& admit);
  Loaded load_library(uint64_t handle, CUdevice device, std::span<const std::byte> bundle, Options options,
                      const Admit& admit);
  // Returns the parameter layout of a kernel, where the driver cannot report it; null: unknown.
  const std::vector<cuda::KernelParam>* layout(uint64_t owner, std::string_view kernel) const;
  void forget(uint64_t handle) { kept_.erase(handle); }

 private:
  // Options and buffers passed to the driver. Libraries compile lazily, so the driver may write to them until
  // the library is unloaded.
  struct Jit {
    char info[kJitLogBytes] = {};
    char error[kJitLogBytes] = {};
    std::vector<CUjit_option> options;
    std::vector<void*> values;
  };
  struct Kept {
    std::unique_ptr<Jit> jit;
    std::unordered_map<std::string, std::vector<cuda::KernelParam>> layouts;
  };
  template <class Load>
  Loaded load(CUdevice device, std::span<const std::byte> bundle, Options options, Kept& kept,
              const Admit& admit, Load&& load);

  const DeviceApi& api_;
  std::unordered_map<uint64_t, Kept> kept_;
};

}  // namespace gpupool::worker
