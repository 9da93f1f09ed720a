#include "server/worker/device/device_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include "protocol/driver/cuda_header.h"

namespace gpupool::worker {
namespace {

constexpr const char* kClientMarker = "gpupool_client_version";  // exported by client/ for this check

Error unusable(const std::string& path, const std::string& why) {
  return {ErrorCode::unavailable, "device library '" + path + "' cannot be used: " + why};
}

// NVIDIA's driver lets a setuid program create this node at the first cuInit, and a worker may not run one.
// /proc tells whether the kernel module is loaded: libcuda.so.1 also creates /dev/nvidiactl for root on a
// host without a GPU.
std::string missing_node() {
  const bool missing =
      ::access("/proc/driver/nvidia/version", F_OK) == 0 && ::access("/dev/nvidia-uvm", F_OK) != 0;
  return missing ? "; there is no /dev/nvidia-uvm: run 'nvidia-modprobe -u -c=0' as root" : "";
}

// Advises the operator of a host on which the driver shows no GPU.
std::string advice(const std::string& path) {
  if (const std::string node = missing_node(); !node.empty()) return node;
  if (path != "libcuda.so.1") return "";
  return "; check that nvidia-smi shows a GPU on this host, or try poold with --device softgpu, which needs "
         "none";
}

}  // namespace

Result<std::unique_ptr<DeviceLibrary>> DeviceLibrary::load(const std::string& path,
                                                           const std::function<Result<void>()>& between) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = ::dlerror();
    std::string why = error != nullptr ? error : "unknown error";
    if (path == "libcuda.so.1")
      why += "; install NVIDIA's driver, or try poold with --device softgpu, which needs no GPU";
    return unusable(path, why);
  }
  if (::dlsym(handle, kClientMarker) != nullptr) {
    return unusable(
        path,
        "it is gpupool's client library; name the driver's full path, or take the client's folder out of "
        "LD_LIBRARY_PATH");
  }
  std::unique_ptr<DeviceLibrary> library(new DeviceLibrary(handle, path));
  const auto init = DEVICE_CALL(*library, cuInit);
  const auto get_version = DEVICE_CALL(*library, cuDriverGetVersion);
  const auto get_count = DEVICE_CALL(*library, cuDeviceGetCount);
  if (init == nullptr || get_version == nullptr || get_count == nullptr) {
    return unusable(path, "it is not a CUDA driver (cuInit is missing)");
  }
  if (const auto done = between ? between() : Result<void>(); !done) return done.error();
  if (const CUresult result = init(0); result != CUDA_SUCCESS) {
    return unusable(path, "cuInit failed with " + error_text(*library, result) + advice(path));
  }
  if (const CUresult result = get_version(&library->driver_version_); result != CUDA_SUCCESS) {
    return unusable(path, "cuDriverGetVersion failed with " + error_text(*library, result));
  }
  if (const CUresult result = get_count(&library->device_count_); result != CUDA_SUCCESS) {
    return unusable(path, "cuDeviceGetCount failed with " + error_text(*library, result));
  }
  if (library->device_count_ <= 0) return unusable(path, "no devices found" + advice(path));
  return library;
}

void* DeviceLibrary::symbol(const char* name) const {
  return ::dlsym(handle_, name);
}

std::string error_text(const DeviceLibrary& library, int result) {
  const auto get_name = DEVICE_CALL(library, cuGetErrorName);
  const char* name = nullptr;
  if (get_name == nullptr || get_name(static_cast<CUresult>(result), &name) != CUDA_SUCCESS ||
      name == nullptr) {
    return "error " + std::to_string(result);
  }
  return std::string(name) + " (" + std::to_string(result) + ")";
}

}  // namespace gpupool::worker
