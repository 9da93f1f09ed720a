// Libraries: programs without a context (cuLibraryLoadData), and their kernels.
//
// A library becomes a module in each context that uses it, at the first use; a context's reset takes that
// instance away and the next use makes a new one, while the library's and kernels' handles stay. Thread-safe.
// A library of a fat binary without code for the devices has a handle and nothing else: find_library() fails for it.
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
  // Without a program (null): a library of an image that has no code for the devices. why_no_code is printed at the first use.
  static CUresult create(std::shared_ptr<const Program> program, std::string why_no_code, Ref<Library>* library);

  uint64_t handle() const { return handle_; }
  bool has_code() const { return program_ != nullptr; }
  // Prints, once, why there is no code.
  void report_no_code();
  // These need code.
  const Program& program() const { return *program_; }
  Ref<Kernel> kernel(std::string_view name);
  std::vector<Ref<Kernel>> kernels();
  // The library's instance in the context.
  CUresult module(Context& current, Ref<Module>* module);
  // A __managed__ variable, which has its address before there is a context.
  CUresult managed(std::string_view name, uint64_t* address, uint64_t* size);
  void unload();

 private:
  explicit Library(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  static std::shared_ptr<FunctionSettings> settings_of(void* request, const KernelInfo& kernel);

  const std::shared_ptr<const Program> program_;
  uint64_t handle_ = 0;
  std::mutex mutex_;
  std::string why_no_code_;  // empty: nothing left to report
  std::map<std::string, Ref<Kernel>, std::less<>> kernels_;
  struct Instance {
    uint64_t epoch;
    Ref<Module> module;
  };
  std::map<uint64_t, Instance> instances_;  // by context handle
  CUresult place_managed();
  // Globals of a program with managed variables: in the first device's primary context they keep their
  // address through every reset. Other contexts have globals of their own, managed ones included.
  uint64_t managed_data_ = 0;
};

// The library of a handle, for all that needs its code: INVALID_HANDLE, NO_BINARY_FOR_GPU.
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
  uint64_t handle = 0;  // set once, before the kernel is shown to anyone

 private:
  const Ref<Library> library_;  // keeps the program that info_ is part of
  const KernelInfo& info_;
  std::vector<std::shared_ptr<FunctionSettings>> settings_;  // by device
  SpinLock lock_;                                            // guards the last answer of function()
  uint64_t cached_context_ = 0, cached_epoch_ = 0;
  Ref<Function> cached_;
};

// A function, or a kernel's function in the context, by handle: the driver takes either where it takes a
// CUfunction.
CUresult resolve_function(Context& context, uint64_t handle, Ref<Function>* function);

}  // namespace gpupool::softgpu
