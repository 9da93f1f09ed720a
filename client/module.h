// Modules, libraries and their functions, as the client remembers them: what a launch needs of a kernel (where its
// parameters go, its limits) comes with the one round trip that looks the kernel up, and every later look-up is local.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/call.h"
#include "protocol/wire/images.h"

namespace gpupool::client {

struct Function : Object {
  // Kernels belong to their library, so to any server where that is wanted.
  CUresult come_to(Session& other) override;
  std::string name;
  uint64_t owner = 0;  // module or library
  std::vector<wire::ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;
  std::atomic<int> attributes[wire::kFunctionAttributes] = {};
  // Functions of kernels: a bit for each attribute that was set of the function itself (cuFuncSetAttribute). That holds, however
  // its kernel is set later.
  std::atomic<uint32_t> own{0};
  uint64_t kernel = 0;  // whose function it is
  static_assert(wire::kFunctionAttributes <= 32);
  // Kernels: their function per context and its epoch (cuKernelGetFunction).
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> functions;
  // Kernels: values set per device by cuKernelSetAttribute; guarded by mutex.
  std::map<std::pair<CUdevice, int>, int> set_for;
  std::atomic<bool> varies{false};  // Kernels: not all contexts' functions have the attributes above
  std::atomic<uint64_t> elsewhere{0};  // other sessions that know it, by Session::index()
  // What was set for the launch calls of CUDA 2 (calls/launch_old.cc); under mutex.
  struct OldLaunch {
    uint32_t block[3] = {1, 1, 1};
    uint32_t shared_bytes = 0;
    std::vector<std::byte> parameters;
  };
  OldLaunch old_launch;
};

struct Code : Object {  // a module or a library
  // A library is loaded by each server where it is wanted, as CUDA loads it into each context.
  CUresult come_to(Session& other) override;
  void forget_globals();  // before it is unloaded
  std::mutex mutex;
  std::map<std::string, uint64_t> functions;  // by name
  std::optional<std::vector<std::string>> names;  // of all kernels, once they were asked for
  // By context and its epoch (a library has its variables in each context), then by name.
  std::map<std::pair<uint64_t, uint32_t>, std::map<std::string, wire::GlobalInfo>> globals;
  // Libraries: the module that stands for them, per context and its epoch (cuLibraryGetModule). Such a module is known
  // on this side alone and names its library here; what is looked up in it is looked up there.
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> modules;
  uint64_t library = 0;
  std::vector<std::byte> bundle;       // a library's image, kept where there are servers that may want it yet,
  std::vector<wire::JitOption> options;  // and how it is compiled
  std::atomic<uint64_t> elsewhere{0};  // as a function's
  // A library's log: the reason why the device holds no code of it, if calls that need its code fail. Under mutex.
  std::string log;
};

// A function, or a kernel where CUDA takes one for the other; null: neither.
Function* find_function(CUfunction function);

// As the program gave them. A log's size tells its room first and what was written later, so the room is kept.
struct JitOptions {
  JitOptions() = default;
  JitOptions(unsigned count, CUjit_option* options, void** values);
  bool valid() const { return count == 0 || (count <= wire::kMaxJitOptions && options && values); }
  // What of them goes to the server. NOT_SUPPORTED: one that is neither a number nor answered here.
  CUresult to_send(std::vector<wire::JitOption>* numeric) const;

  unsigned count = 0;
  CUjit_option* options = nullptr;
  void** values = nullptr;
  size_t info_room = 0, error_room = 0;
};

// Sends bytes as an upload (its number) that a later command takes.
CUresult upload_image(Session& session, std::span<const std::byte> bytes, uint64_t* upload);
// What the server's compiler said goes where the program asked for it.
void deliver_log(const std::string& log, CUresult result, const JitOptions& jit);
// CU_JIT_WALL_TIME
void deliver_time(float milliseconds, const JitOptions& jit);
// Loads an image as a new module or library: named first, and sent, as a bundle of its files, only if the server does not
// have it. Waits for the server's verdict.
CUresult load(Session& session, Context* context, Kind kind, const void* image, const JitOptions& jit, uint64_t* handle);
// The handle of a function by name: from memory, or with one round trip.
CUresult look_up(Session& session, Context* context, Kind owner_kind, Kind kind, uint64_t owner, const char* name, uint64_t* handle);
// The function of a library's kernel in a context.
CUresult function_of_kernel(Session& session, Context* context, uint64_t kernel, uint64_t* function);
// Where a kernel stands for its function in the context (null: none is current) and that has attributes of its own, the function.
CUresult go_to_function(Session* session, Context* context, Function** function);
// The names of a module's or library's kernels, in the server's order: from memory, or from the server.
CUresult kernel_names(Session& session, Context* context, Kind owner_kind, uint64_t owner, const std::vector<std::string>** names);
// Without a context only managed variables of libraries are found.
CUresult get_global(Session& session, Context* context, Kind owner_kind, uint64_t owner, const char* name, CUdeviceptr* address, size_t* bytes,
                    bool* managed = nullptr);
// A file is read whole and loaded from memory; PTX needs its NUL.
CUresult read_file(const char* path, std::string* content);

}  // namespace gpupool::client
