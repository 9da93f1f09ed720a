// The device's libcuda.so.1 (NVIDIA's, or softgpu), opened by an explicit path: what the worker calls.
//
// Immutable once loaded; any thread may call symbol(). Never unloaded: drivers do not survive that, and the
// process ends with the session.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "protocol/wire/result.h"

namespace gpupool::worker {

class DeviceLibrary {
 public:
  // dlopen, `between` (may be null), and cuInit. Refuses gpupool's own client library, which would only send the calls on.
  static Result<std::unique_ptr<DeviceLibrary>> load(const std::string& path, const std::function<Result<void>()>& between = nullptr);

  // The address of a name as it stands in the symbol table ("cuMemAlloc_v2"); nullptr where the library has
  // none.
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

// DEVICE_CALL(library, cuDeviceTotalMem_v2): a typed pointer to exactly that symbol, or nullptr.
#define DEVICE_CALL(library, name) reinterpret_cast<decltype(&name)>((library).symbol(#name))

// "CUDA_ERROR_NO_DEVICE (100)"
std::string error_text(const DeviceLibrary& library, int result);

}  // namespace gpupool::worker
