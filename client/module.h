// Modules, libraries and their functions, as the client remembers them: what a launch needs of a kernel (where its
// parameters go, its limits) comes with the one round trip that looks the kernel up, and every later look-up is local.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "client/call.h"

namespace gpupool::client {

struct Function : Object {
  // Kernels belong to their library, so to any server where that is wanted.
  CUresult come_to(Session& other) override;
  std::string name;
  uint64_t owner = 0;  // module or library
  std::vector<wire::ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;
  std::atomic<int> attributes[wire::kFunctionAttributes] = {};
  // Kernels: their function per context and its epoch (cuKernelGetFunction).
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> functions;
  std::atomic<uint64_t> elsewhere{0};  // other sessions that know it, by Session::index()
};

struct Code : Object {  // a module or a library
  // A library is loaded by each server where it is wanted, as CUDA loads it into each context.
  CUresult come_to(Session& other) override;
  std::mutex mutex;
  std::map<std::string, uint64_t> functions;  // by name
  // By context and its epoch (a library has its variables in each context), then by name.
  std::map<std::pair<uint64_t, uint32_t>, std::map<std::string, wire::GlobalInfo>> globals;
  // Libraries: the module that stands for them, per context and its epoch (cuLibraryGetModule). Such a module is known
  // on this side alone and names its library here; what is looked up in it is looked up there.
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> modules;
  uint64_t library = 0;
  std::vector<std::byte> bundle;       // a library's image, kept where there are servers that may want it yet
  std::atomic<uint64_t> elsewhere{0};  // as a function's
};

// A function, or a kernel where CUDA takes one for the other; null: neither.
Function* find_function(CUfunction function);
// Copies what the server said of a function into the object; false: malformed.
bool read_function_info(const wire::Buffer& reply, Function& function);

}  // namespace gpupool::client
