// Libraries: programs loaded without a context (cuLibraryLoadData), and their kernels.
//
// A library becomes a module in each context at the first use there. A reset of the context removes that
// module, and the next use makes a new one; the handles of the library and its kernels stay valid. A library
// of a fat binary without code for the devices has a handle and nothing else: find_library() fails for it.
// Thread-safe.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/module.h"

namespace gpupool::softgpu {

class Kernel;

class Library final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::library;
  // `program` is null if the image has no code for the devices; the first use then prints why_no_code.
  static CUresult create(std::shared_ptr<const Program> program, std::string why_no_code,
                         Ref<Library>* library);

  uint64_t handle() const { return handle_; }
  bool has_code() const { return program_ != nullptr; }
  // Prints the reason once, to stderr and the driver's log.
  void report_no_code();
  // program(), module() and managed() require has_code().
  const Program& program() const { return *program_; }
  Ref<Kernel> kernel(std::string_view name);
  std::vector<Ref<Kernel>> kernels();
  // Returns the library's module in the context, made at the first use.
  CUresult module(Context& current, Ref<Module>* module);
  // Returns a __managed__ variable, which has its address before there is a context. CUDA_ERROR_NOT_FOUND if
  // no such variable exists.
  CUresult managed(std::string_view name, uint64_t* address, uint64_t* size);
  void unload();

 private:
  explicit Library(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  static std::shared_ptr<FunctionSettings> settings_of(void* request, const KernelInfo& kernel);

  const std::shared_ptr<const Program> program_;
  uint64_t handle_ = 0;
  std::mutex mutex_;
  std::string no_code_reason_;  // empty: nothing to report
  std::map<std::string, Ref<Kernel>, std::less<>> kernels_;
  struct Instance {
    uint64_t epoch;
    Ref<Module> module;
  };
  std::map<uint64_t, Instance> instances_;  // by context handle
  CUresult place_managed();
  // Data segment of a program with __managed__ variables, in the first device's primary context; 0: not
  // allocated. Its address survives every reset. Other contexts have globals of their own, managed ones
  // included.
  uint64_t managed_data_ = 0;
};

// Finds a library for a call that needs its code. CUDA_ERROR_NO_BINARY_FOR_GPU if it has no code for the
// devices; CUDA_ERROR_INVALID_HANDLE if there is no such library.
CUresult find_library(uint64_t handle, Ref<Library>* library);

class Kernel final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::kernel;
  Kernel(Ref<Library> library, const KernelInfo& info, size_t devices);

  Library& library() const { return *library_; }
  const KernelInfo& info() const { return info_; }
  FunctionSettings& settings(int device) const { return *settings_[static_cast<size_t>(device)]; }
  const std::shared_ptr<FunctionSettings>& shared_settings(int device) const {
    return settings_[static_cast<size_t>(device)];
  }
  CUresult function(Context& current, Ref<Function>* function);
  uint64_t handle = 0;  // set before the kernel is published

 private:
  const Ref<Library> library_;  // keeps info_ valid
  const KernelInfo& info_;
  std::vector<std::shared_ptr<FunctionSettings>> settings_;  // by device
  SpinLock lock_;                                            // guards the cached result of function()
  uint64_t cached_context_ = 0, cached_epoch_ = 0;
  Ref<Function> cached_;
};

// Finds a function by a CUfunction handle. As in CUDA, this may be the handle of a library kernel, which
// stands for the kernel's function in the context.
CUresult resolve_function(Context& context, uint64_t handle, Ref<Function>* function);

}  // namespace gpupool::softgpu
