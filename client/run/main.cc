// pool-run: starts a program with gpupool's client library in place of NVIDIA's driver.
//
// It replaces itself by the program (exec), so exit status and signals are the program's own. pool-lease
// (client/lease_client/) holds a pool's lease while the program lives.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "client/lease/file.h"
#include "client/lease/helper.h"
#include "common/version.h"
#include "protocol/environment.h"
#include "protocol/transport/transport.h"

namespace {

namespace fs = std::filesystem;

// 125 to 127 as in env(1) and the shell: the program was not run.
constexpr int kExitUsage = 2;
constexpr int kExitBroken = 125;
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

constexpr const char* kHelp =
    "Usage: pool-run [--server tcp://HOST:PORT[,...]] [--token-file FILE] [--preload] [--stats] [--] PROGRAM "
    "[ARGUMENTS...]\n"
    "       pool-run [--server pool://SCHEDULER:PORT] [--gpus 2] [--memory 8GiB] [...] [--] PROGRAM "
    "[ARGUMENTS...]\n"
    "\n"
    "Runs PROGRAM with its CUDA calls executed by the poold at HOST:PORT, or on GPUs leased\n"
    "from the pool's scheduler.\n"
    "\n"
    "  --server URL  the poold to use; default: $GPUPOOL. rdma://HOST:PORT requires RDMA,\n"
    "                shm:///PATH is a Unix socket on this host. Several servers, separated\n"
    "                by commas: their devices are numbered consecutively in this order, as\n"
    "                CUDA_VISIBLE_DEVICES counts them; all of them must be reachable.\n"
    "                For a pool: its scheduler, or several separated by commas\n"
    "  --gpus N, --compute PERCENT, --memory SIZE, --model NAME, --one-host, --cpus N,\n"
    "  --host-memory SIZE, --mode elastic|hard, --priority low|normal|high, --near LABEL,\n"
    "  --apart LABEL, --label LABEL\n"
    "                resources to request from the pool: number of GPUs [1], and of each\n"
    "                GPU a percentage of its compute [100] and an amount of memory [the\n"
    "                same share]. Held while PROGRAM runs.\n"
    "                Labels place leases of a tenant near or apart from each other\n"
    "                (docs/operations.md, \"Lease options\")\n"
    "  --token-file FILE  the file with your tenant's token; default: $GPUPOOL_TOKEN_FILE\n"
    "  --preload     also add the client library to LD_PRELOAD, for programs that find\n"
    "                libcuda.so.1 by a path of their own (RPATH)\n"
    "  --stats       when a process that used the pool ends, print traffic statistics on\n"
    "                stderr: calls, round trips, bytes, time waited\n"
    "  --version     print the version\n"
    "  --help        print this text\n"
    "\n"
    "GPUPOOL_TRANSPORT selects the transport for tcp:// servers: auto (the default: shared\n"
    "memory on this host, RDMA if both sides have it, else TCP), tcp, or rdma (fails without\n"
    "RDMA); GPUPOOL_RDMA_DEVICE and others configure RDMA; GPUPOOL_LOG=debug prints the\n"
    "transport in use.\n"
    "\n"
    "For NCCL, pool-run sets NCCL_SHM_DISABLE=1, because GPUs of another host do not share\n"
    "this host's memory. If all GPUs are on one server, it also sets NCCL_P2P_LEVEL=SYS,\n"
    "because the GPUs reach each other although this host's PCIe topology does not show it,\n"
    "and NCCL_HOSTID, so that GPUs of other servers count as other hosts. Variables that\n"
    "you have set stay unchanged.\n"
    "For JAX, it adds a plugin to PYTHONPATH: without it JAX uses the CPU on a machine\n"
    "without NVIDIA device files.\n"
    "\n"
    "The exit status is PROGRAM's, or 127: PROGRAM not found, 126: PROGRAM cannot be\n"
    "executed, 125: gpupool's client library is missing, or the pool granted no GPU, 2:\n"
    "wrong usage.\n";

int fail(int status, const std::string& why) {
  std::fprintf(stderr, "pool-run: %s\n", why.c_str());
  return status;
}

// The resources that may be requested from a pool; all but the last take a value.
constexpr std::string_view kRequestKeys[] = {"gpus", "compute",  "memory", "model", "cpus",  "host-memory",
                                             "mode", "priority", "near",   "apart", "label", "one-host"};

struct Arguments {
  std::string server;
  std::string request_query;  // in the form of a pool:// address's query string
  std::string token_file;
  bool preload = false;
  bool stats = false;
  char** program = nullptr;  // with its arguments, terminated by null
};

std::string encoded(const std::string& value) {
  std::string out;
  for (const char c : value) {
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    out += plain ? std::string(1, c) : code;
  }
  return out;
}

// Parses an option of kRequestKeys. `found`: it was one. Returns 0, or the exit status of a usage error.
int parse_request_option(char**& words, Arguments& out, bool& found) {
  const std::string word = *words;
  const size_t equals = word.find('=');
  const std::string name =
      word.starts_with("--") ? word.substr(2, equals == std::string::npos ? equals : equals - 2) : "";
  found = std::find(std::begin(kRequestKeys), std::end(kRequestKeys), name) != std::end(kRequestKeys);
  if (!found) return 0;
  std::string value = equals == std::string::npos ? "1" : word.substr(equals + 1);
  if (name == "one-host" && equals != std::string::npos) return fail(kExitUsage, "--one-host takes no value");
  if (name != "one-host" && equals == std::string::npos) {
    if (words[1] == nullptr) return fail(kExitUsage, "--" + name + " needs a value; see pool-run --help");
    value = *++words;
  }
  out.request_query += (out.request_query.empty() ? "" : "&") + name + "=" + encoded(value);
  return 0;
}

// Returns -1 to continue, else the exit status.
int parse(char** words, Arguments& out) {
  for (++words; *words != nullptr; ++words) {
    const std::string word = *words;
    if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), 0;
    if (word == "--version") return std::printf("pool-run %s\n", gpupool::kVersion), 0;
    bool is_request_option = false;
    if (const int status = parse_request_option(words, out, is_request_option); status != 0) return status;
    if (is_request_option) continue;
    if (word == "--preload") {
      out.preload = true;
    } else if (word == "--stats") {
      out.stats = true;
    } else if (word == "--server") {
      if (words[1] == nullptr) return fail(kExitUsage, "--server needs a value, tcp://HOST:PORT");
      out.server = *++words;
    } else if (word.starts_with("--server=")) {
      out.server = word.substr(std::string("--server=").size());
    } else if (word == "--token-file") {
      if (words[1] == nullptr) return fail(kExitUsage, "--token-file needs the path of a file");
      out.token_file = *++words;
    } else if (word.starts_with("--token-file=")) {
      out.token_file = word.substr(std::string("--token-file=").size());
    } else if (word == "--") {
      ++words;
      break;
    } else if (word.starts_with("-")) {
      return fail(kExitUsage, "unknown option '" + word + "'; see pool-run --help");
    } else {
      break;
    }
  }
  if (*words == nullptr) return fail(kExitUsage, "no program given; see pool-run --help");
  out.program = words;
  return -1;
}

// Returns the library's path, relative to PREFIX/bin/pool-run.
fs::path client_library(std::error_code& status) {
  const fs::path program = fs::read_symlink("/proc/self/exe", status);
  return (program.parent_path().parent_path() / "lib" / "client" / "libcuda.so.1").lexically_normal();
}

bool prepend(const char* variable, const std::string& value) {
  const char* old = std::getenv(variable);
  // an empty entry would mean the current directory
  const std::string all = old != nullptr && *old != '\0' ? value + ":" + old : value;
  return gpupool::set_environment(variable, all);
}

// Sets what NCCL cannot detect on this host: GPUs do not map this host's shared memory, and GPUs of one
// server have peer access. Between processes whose GPUs belong to different servers NCCL must not try peer
// access, although they seem to be on one host; so each server gets its own host id. A process with GPUs of
// several servers is left to NCCL.
bool advise_nccl(const std::string& server) {
  const auto set = [](const char* name, const std::string& value) {
    return gpupool::set_environment(name, value, false);
  };
  if (!set("NCCL_SHM_DISABLE", "1")) return false;
  const auto servers = gpupool::client::named_servers(server);
  if (!servers || servers->size() != 1) return true;
  std::string host;  // as NCCL composes it
  for (const char* file : {"/proc/sys/kernel/hostname", "/proc/sys/kernel/random/boot_id"}) {
    std::string line;
    std::getline(std::ifstream(file), line);
    host += line + "-";
  }
  return set("NCCL_P2P_LEVEL", "SYS") && set("NCCL_HOSTID", host + servers->front().endpoint.text());
}

// JAX ignores its CUDA backend on a machine without NVIDIA device files; a plugin corrects that
// (client/python/).
bool advise_jax(const fs::path& client_folder) {
  std::error_code status;
  const fs::path modules = client_folder / "python";
  return !fs::is_directory(modules, status) || prepend("PYTHONPATH", modules.string());
}

int run(char** words) {
  Arguments arguments;
  if (const int status = parse(words, arguments); status >= 0) return status;

  const char* inherited = std::getenv("GPUPOOL");
  if (arguments.server.empty() && inherited != nullptr) arguments.server = inherited;
  if (arguments.server.empty()) {
    return fail(kExitUsage,
                "no server given; use --server tcp://HOST:PORT or pool://SCHEDULER:PORT, or set GPUPOOL");
  }
  const bool pool = arguments.server.starts_with("pool://");
  if (!pool && !arguments.request_query.empty()) {
    return fail(kExitUsage, "--" + arguments.request_query.substr(0, arguments.request_query.find('=')) +
                                " requires a pool; use --server pool://HOST:PORT instead of '" +
                                arguments.server + "'");
  }
  if (!pool && !arguments.server.starts_with(gpupool::client::kLeaseScheme)) {
    if (const auto servers = gpupool::client::named_servers(arguments.server); !servers)
      return fail(kExitUsage, servers.error().message);
  }

  if (!arguments.token_file.empty() && ::access(arguments.token_file.c_str(), R_OK) != 0) {
    return fail(kExitUsage, "--token-file: '" + arguments.token_file +
                                "' cannot be read: " + std::generic_category().message(errno));
  }

  std::error_code status;
  const fs::path library = client_library(status);
  if (status || !fs::is_regular_file(library, status)) {
    return fail(kExitBroken,
                "cannot find gpupool's client library at " + library.string() + "; install or build it");
  }
  const std::string forbidden = arguments.preload ? ":; \t\n" : ":;";
  if (library.string().find_first_of(forbidden) != std::string::npos) {
    return fail(kExitBroken,
                "cannot use the library folder " + library.parent_path().string() +
                    ": the dynamic linker accepts no paths with colons, semicolons or spaces; move gpupool");
  }
  const std::string token_file =
      arguments.token_file.empty() ? "" : fs::absolute(arguments.token_file).string();
  if (!token_file.empty() && !gpupool::set_environment("GPUPOOL_TOKEN_FILE", token_file))
    return fail(kExitBroken, "out of memory");
  if (pool) {
    if (!arguments.request_query.empty()) {
      arguments.server +=
          (arguments.server.find('?') == std::string::npos ? "?" : "&") + arguments.request_query;
    }
    // pool-lease holds the lease while this process lives, which is about to become the program.
    const auto lease =
        gpupool::client::acquire_lease(fs::read_symlink("/proc/self/exe").parent_path() / "pool-lease",
                                       arguments.server, fs::path(arguments.program[0]).filename());
    if (!lease)
      return fail(lease.error().code == gpupool::ErrorCode::invalid ? kExitUsage : kExitBroken,
                  lease.error().message);
    arguments.server = std::string(gpupool::client::kLeaseScheme) + *lease;
  }
  if (!gpupool::set_environment("GPUPOOL", arguments.server) || !advise_nccl(arguments.server) ||
      !advise_jax(library.parent_path()) || !prepend("LD_LIBRARY_PATH", library.parent_path().string()) ||
      (arguments.stats && !gpupool::set_environment("GPUPOOL_STATS", "1")) ||
      (arguments.preload && !prepend("LD_PRELOAD", library.string()))) {
    return fail(kExitBroken, "out of memory");
  }

  ::execvp(arguments.program[0], arguments.program);
  const int error = errno;
  return fail(
      error == ENOENT || error == ENOTDIR ? kExitNotFound : kExitCannotRun,
      "cannot run '" + std::string(arguments.program[0]) + "': " + std::generic_category().message(error));
}

}  // namespace

int main(int, char** words) {
  try {
    return run(words);
  } catch (const std::exception& failure) {
    return fail(kExitBroken, failure.what());
  }
}
