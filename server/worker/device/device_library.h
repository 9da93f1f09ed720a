// The device's libcuda.so.1 (NVIDIA's or softgpu's), opened by its path.
//
// Immutable after load(); any thread may call symbol(). Never unloaded: drivers do not support that, and the
// process ends with the session.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "common/result.h"

namespace gpupool::worker {

class DeviceLibrary {
 public:
  // Calls dlopen, `between` (may be null) and cuInit. Rejects gpupool's client library, which would send the
  // calls back to a server.
  static Result<std::unique_ptr<DeviceLibrary>> load(const std::string& path,
                                                     const std::function<Result<void>()>& between = nullptr);

  // Returns the address of an exported symbol, such as "cuMemAlloc_v2", or null if the library has none of
  // that name.
  void* symbol(const char* name) const;
  const std::string& path() const { return path_; }
  int driver_version() const { return driver_version_; }
  int device_count() const { return device_count_; }

 private:
  DeviceLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  void* handle_;
  std::string path_;
  int driver_version_ = 0;
  int device_count_ = 0;
};

// DEVICE_CALL(library, cuDeviceTotalMem_v2): a typed pointer to exactly that symbol, or null.
#define DEVICE_CALL(library, name) reinterpret_cast<decltype(&name)>((library).symbol(#name))

// Returns, for example, "CUDA_ERROR_NO_DEVICE (100)".
std::string error_text(const DeviceLibrary& library, int result);

}  // namespace gpupool::worker
