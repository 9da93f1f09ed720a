// Modules and libraries of the client: images are checked before the driver sees them, because the driver takes sizes
// from the image's own headers; what must live as long as the loaded object (options and log buffers of the compiler, parameter layouts for drivers
// that do not tell them) is kept here. The executor's thread alone uses it.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "protocol/cuda/kernel_params.h"
#include "protocol/wire/images.h"
#include "server/worker/device_api.h"

namespace gpupool::worker {

constexpr size_t kJitLogBytes = 16 * 1024;  // each of the two logs

class Images {
 public:
  explicit Images(const DeviceApi& api) : api_(api) {}

  struct Loaded {
    CUresult result = CUDA_SUCCESS;
    void* object = nullptr;
    bool admitted = false;
    std::string log;  // of the JIT compiler; where the driver says nothing of an image without code for the device, the reason
    float milliseconds = 0;  // that it took
  };
  using Options = std::span<const wire::JitOption>;  // numeric ones alone
  // Asked when the image is understood, before the driver gets it.
  using Admit = std::function<CUresult(const cuda::Image&)>;
  // `device`: the current context's.
  Loaded load_module(uint64_t handle, CUdevice device, std::span<const std::byte> bundle, Options options, const Admit& admit);
  Loaded load_library(uint64_t handle, CUdevice device, std::span<const std::byte> bundle, Options options, const Admit& admit);
  // Parameter layout of a kernel by name, where the driver cannot tell it; null: unknown.
  const std::vector<cuda::KernelParam>* layout(uint64_t owner, std::string_view kernel) const;
  void forget(uint64_t handle) { kept_.erase(handle); }

 private:
  // What the driver is given with an image. Libraries compile late, so it may write there until they are unloaded.
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
  Loaded load(CUdevice device, std::span<const std::byte> bundle, Options options, Kept& kept, const Admit& admit, Load&& load);

  const DeviceApi& api_;
  std::unordered_map<uint64_t, Kept> kept_;
};

}  // namespace gpupool::worker
