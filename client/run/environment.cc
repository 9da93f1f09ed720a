#include "client/run/environment.h"

#include <cstdlib>
#include <fstream>
#include <system_error>

#include "client/lease/file.h"
#include "protocol/environment.h"

namespace gpupool::run {
namespace {

namespace fs = std::filesystem;
using Mode = Variable::Mode;

// Adds what NCCL cannot detect on this host: GPUs do not map this host's shared memory, and GPUs of one
// server have peer access. Between processes whose GPUs belong to different servers NCCL must not try peer
// access, although they seem to be on one host; so each server gets its own host id. A process with GPUs of
// several servers is left to NCCL.
void advise_nccl(const std::string& server, std::vector<Variable>& out) {
  out.push_back({"NCCL_SHM_DISABLE", "1", Mode::keep_existing});
  const auto servers = client::named_servers(server);
  if (!servers || servers->size() != 1) return;
  std::string host;  // as NCCL composes it
  for (const char* file : {"/proc/sys/kernel/hostname", "/proc/sys/kernel/random/boot_id"}) {
    std::string line;
    std::getline(std::ifstream(file), line);
    host += line + "-";
  }
  out.push_back({"NCCL_P2P_LEVEL", "SYS", Mode::keep_existing});
  out.push_back({"NCCL_HOSTID", host + servers->front().endpoint.text(), Mode::keep_existing});
}

// JAX ignores its CUDA backend on a machine without NVIDIA device files; a plugin corrects that
// (client/python/).
void advise_jax(const fs::path& client_folder, std::vector<Variable>& out) {
  std::error_code status;
  const fs::path modules = client_folder / "python";
  if (fs::is_directory(modules, status)) out.push_back({"PYTHONPATH", modules.string(), Mode::prepend});
}

}  // namespace

Result<Installation> find_installation() {
  std::error_code status;
  const fs::path program = fs::read_symlink("/proc/self/exe", status);
  const fs::path programs = program.parent_path();
  const fs::path client = (programs.parent_path() / "lib" / "client").lexically_normal();
  const fs::path library = client / "libcuda.so.1";
  if (status || !fs::is_regular_file(library, status)) {
    return Error{ErrorCode::unavailable,
                 "cannot find gpupool's client library at " + library.string() + "; install or build it"};
  }
  return Installation{programs, client};
}

Result<std::vector<Variable>> program_environment(const Installation& installation,
                                                  const EnvironmentOptions& options) {
  const std::string folder = installation.client.string();
  if (folder.find_first_of(options.preload ? ":; \t\n" : ":;") != std::string::npos) {
    return Error{ErrorCode::invalid,
                 "cannot use the library folder " + folder +
                     ": the dynamic linker accepts no paths with colons, semicolons or spaces; move gpupool"};
  }
  std::vector<Variable> out = {{"GPUPOOL", options.server}};
  if (!options.token_file.empty()) out.push_back({"GPUPOOL_TOKEN_FILE", options.token_file});
  advise_nccl(options.server, out);
  advise_jax(installation.client, out);
  out.push_back({"LD_LIBRARY_PATH", folder, Mode::prepend});
  if (options.stats) out.push_back({"GPUPOOL_STATS", "1"});
  if (!options.timeline.empty()) out.push_back({"GPUPOOL_TIMELINE", options.timeline});
  if (options.preload) {
    out.push_back({"LD_PRELOAD", (installation.client / "libcuda.so.1").string(), Mode::prepend});
  }
  return out;
}

bool set_variables(const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    std::string value = variable.value;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
    const char* old = variable.mode == Mode::prepend ? std::getenv(variable.name.c_str()) : nullptr;
    // An empty entry would mean the current directory.
    if (old != nullptr && *old != '\0') value += std::string(":") + old;
    if (!set_environment(variable.name.c_str(), value, variable.mode != Mode::keep_existing)) return false;
  }
  return true;
}

}  // namespace gpupool::run
