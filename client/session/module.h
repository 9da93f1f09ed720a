// Modules, libraries and their functions. A kernel's parameter layout and limits arrive with the one round
// trip that looks it up; later look-ups are local. Used by the module, library and launch calls. Thread-safe.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/session/call.h"
#include "protocol/calls/jit_options.h"
#include "protocol/wire/images.h"

namespace gpupool::client {

struct Function : Object {
  // Kernels exist on every server where their library is loaded. Loads the library there if necessary.
  CUresult ensure_loaded(Session& other) override;
  std::string name;
  uint64_t owner = 0;  // handle of the module or library
  std::vector<wire::ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;
  std::atomic<int> attributes[wire::kFunctionAttributes] = {};
  // Functions of kernels: bitmask of the attributes set by cuFuncSetAttribute; they override later
  // cuKernelSetAttribute calls.
  std::atomic<uint32_t> explicit_attributes{0};
  uint64_t kernel = 0;  // functions of kernels: handle of the kernel
  static_assert(wire::kFunctionAttributes <= 32);
  // Kernels: their function in each context, by context handle and epoch (cuKernelGetFunction).
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> functions;
  // Kernels: values set by cuKernelSetAttribute, by device and attribute; guarded by mutex.
  std::map<std::pair<CUdevice, int>, int> set_for;
  std::atomic<bool> attributes_vary{false};  // kernels: their attributes may differ between contexts
  std::atomic<uint64_t> loaded_sessions{0};  // bitmask of other sessions that know it, by Session::index()
  // State of the launch calls of CUDA 2 (client/api/launch_old.cc); guarded by mutex.
  struct OldLaunch {
    uint32_t block[3] = {1, 1, 1};
    uint32_t shared_bytes = 0;
    std::vector<std::byte> parameters;
  };
  OldLaunch old_launch;
};

struct Code : Object {  // a module or a library
  // A library is loaded on each server at first use there, as CUDA loads it into each context.
  CUresult ensure_loaded(Session& other) override;
  void forget_globals();  // call before unloading
  std::mutex mutex;
  std::map<std::string, uint64_t> functions;      // handle by name
  std::optional<std::vector<std::string>> names;  // names of all kernels, once asked for
  // Variables by context handle and epoch (a library has its own in each context), then by name.
  std::map<std::pair<uint64_t, uint32_t>, std::map<std::string, wire::GlobalInfo>> globals;
  // Libraries: the module that represents the library in a context (cuLibraryGetModule), by context handle
  // and epoch. Only the client knows this module; look-ups in it go to the library, which it names in
  // `library`.
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> modules;
  uint64_t library = 0;
  std::vector<std::byte> bundle;             // libraries: the image, kept if further servers may need it
  std::vector<wire::JitOption> options;      // libraries: the JIT options of the image
  std::atomic<uint64_t> loaded_sessions{0};  // bitmask of other sessions that have it, as in Function
  // Libraries: the compiler's log. If the device has no code of the library, it is the reason, logged when a
  // call needs code. Guarded by mutex.
  std::string log;
};

// Returns a function, or a kernel where CUDA accepts one as a function; null: neither.
Function* find_function(CUfunction function);

// JIT options as the program passed them.
struct JitOptions : cuda::JitOptionList {
  JitOptions() = default;
  JitOptions(unsigned count, CUjit_option* options, void** values);
  // Appends the options for the server. An error: an option is refused.
  CUresult to_send(std::vector<wire::JitOption>* numeric) const;

  mutable cuda::JitLogs logs;
};

// Sends bytes to the server as an upload, for a later command to use. *upload: its number.
CUresult upload_image(Session& session, std::span<const std::byte> bytes, uint64_t* upload);
// The logs of the server's compiler or linker.
struct JitReport {
  std::string error, info;
};
// Copies the logs into the buffers that the program passed for them. Also logs the reason of a failure.
void deliver_logs(const JitReport& report, CUresult result, const JitOptions& jit);
// Loads an image as a new module or library: sends its name first, and the image, as a bundle of its files,
// only if the server does not have it. Waits for the result.
CUresult load(Session& session, Context* context, Kind kind, const void* image, const JitOptions& jit,
              uint64_t* handle);
// Returns a function's handle by name: from memory, or with one round trip.
CUresult look_up(Session& session, Context* context, Kind owner_kind, Kind kind, uint64_t owner,
                 const char* name, uint64_t* handle);
// Returns the function of a library's kernel in a context.
CUresult function_of_kernel(Session& session, Context* context, uint64_t kernel, uint64_t* function);
// If *function is a kernel whose functions have attributes of their own, replaces it by its function in the
// context (null: no context is current; nothing happens).
CUresult resolve_function(Session* session, Context* context, Function** function);
// Returns the names of all kernels of a module or library, in the server's order: from memory, or from the
// server.
CUresult kernel_names(Session& session, Context* context, Kind owner_kind, uint64_t owner,
                      const std::vector<std::string>** names);
// Looks up a variable. Without a context finds only managed variables of libraries.
CUresult get_global(Session& session, Context* context, Kind owner_kind, uint64_t owner, const char* name,
                    CUdeviceptr* address, size_t* bytes, bool* managed = nullptr);
// Reads a whole file and appends a NUL, which PTX needs.
CUresult read_file(const char* path, std::string* content);

}  // namespace gpupool::client
