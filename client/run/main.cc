// pool-run: starts a program with gpupool's client library in place of NVIDIA's driver.
//
// It replaces itself by the program (exec), so exit status and signals are the program's own. pool-lease
// (client/lease_client/) holds a pool's lease while the program lives.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "client/lease/file.h"
#include "client/lease/helper.h"
#include "client/run/environment.h"
#include "client/run/request.h"
#include "client/timeline/trace_event.h"
#include "client/timeline/trace_file.h"
#include "common/version.h"
#include "protocol/environment.h"

namespace {

namespace fs = std::filesystem;

// 125 to 127 as in env(1) and the shell: the program was not run.
constexpr int kExitUsage = 2;
constexpr int kExitBroken = 125;
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

constexpr std::string_view kPoolScheme = "pool://";

constexpr const char* kHelp =
    "Usage: pool-run [--server tcp://HOST:PORT[,...]] [--token-file FILE] [--preload] [--stats] "
    "[--timeline FILE] [--] PROGRAM [ARGUMENTS...]\n"
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
    "  --timeline FILE  write what PROGRAM's calls, streams and waits do, over time, to\n"
    "                this file, which ui.perfetto.dev opens (docs/timeline.md)\n"
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

struct Arguments {
  std::string server;
  std::string request_query;  // in the form of a pool:// address's query string
  std::string token_file;
  std::string timeline;
  bool preload = false;
  bool stats = false;
  char** program = nullptr;  // with its arguments, terminated by null
};

// Returns -1 to continue, else the exit status.
int parse(char** words, Arguments& out) {
  for (++words; *words != nullptr; ++words) {
    const std::string word = *words;
    if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), 0;
    if (word == "--version") return std::printf("pool-run %s\n", gpupool::kVersion), 0;
    const auto request = gpupool::run::parse_request_option(words);
    if (!request) return fail(kExitUsage, request.error().message);
    if (request->has_value()) {
      out.request_query += (out.request_query.empty() ? "" : "&") + **request;
    } else if (word == "--preload") {
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
    } else if (word == "--timeline") {
      if (words[1] == nullptr) return fail(kExitUsage, "--timeline needs the path of a file to write");
      out.timeline = *++words;
    } else if (word.starts_with("--timeline=")) {
      out.timeline = word.substr(std::string("--timeline=").size());
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

// Completes and checks arguments.server. Returns -1 to continue, else the exit status.
int check_server(Arguments& arguments) {
  const char* inherited = std::getenv("GPUPOOL");
  if (arguments.server.empty() && inherited != nullptr) arguments.server = inherited;
  if (arguments.server.empty()) {
    return fail(kExitUsage,
                "no server given; use --server tcp://HOST:PORT or pool://SCHEDULER:PORT, or set GPUPOOL");
  }
  const bool pool = arguments.server.starts_with(kPoolScheme);
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
  return -1;
}

// Creates the file of the timeline, which the program's processes append to. Returns -1 to continue, else the
// exit status.
int create_timeline(Arguments& arguments) {
  namespace timeline = gpupool::client::timeline;
  if (arguments.timeline.empty()) return -1;
  arguments.timeline = fs::absolute(arguments.timeline).string();
  std::string event;
  timeline::append_json({.phase = 'i',
                         .begin = timeline::now(),
                         .name = "start of the program",
                         .category = "timeline",
                         .process = ::getpid(),
                         .track = static_cast<uint64_t>(::getpid()),
                         .arguments = {{{"program", 0, arguments.program[0]}}}},
                        event);
  const auto created = timeline::TraceFile::create(arguments.timeline, event);
  if (created) return -1;
  return fail(kExitUsage, "--timeline: '" + arguments.timeline + "': " + created.error().message);
}

// Replaces a pool's address by the file of a lease. pool-lease holds the lease while this process lives,
// which is about to become the program. Returns -1 to continue, else the exit status.
int acquire_lease(const gpupool::run::Installation& installation, Arguments& arguments) {
  if (!arguments.server.starts_with(kPoolScheme)) return -1;
  const auto lease =
      gpupool::client::acquire_lease(installation.programs / "pool-lease",
                                     gpupool::run::with_request(arguments.server, arguments.request_query),
                                     fs::path(arguments.program[0]).filename());
  if (!lease) {
    return fail(lease.error().code == gpupool::ErrorCode::invalid ? kExitUsage : kExitBroken,
                lease.error().message);
  }
  arguments.server = std::string(gpupool::client::kLeaseScheme) + *lease;
  return -1;
}

int run(char** words) {
  Arguments arguments;
  if (const int status = parse(words, arguments); status >= 0) return status;
  if (const int status = check_server(arguments); status >= 0) return status;

  const auto installation = gpupool::run::find_installation();
  if (!installation) return fail(kExitBroken, installation.error().message);
  gpupool::run::EnvironmentOptions options;
  options.preload = arguments.preload;
  options.stats = arguments.stats;
  if (!arguments.token_file.empty()) options.token_file = fs::absolute(arguments.token_file).string();
  // pool-lease reads the token, too.
  if (!options.token_file.empty() && !gpupool::set_environment("GPUPOOL_TOKEN_FILE", options.token_file))
    return fail(kExitBroken, "out of memory");
  // Checked before a lease is acquired, because the path of the library may be unusable.
  if (const auto checked = gpupool::run::program_environment(*installation, options); !checked)
    return fail(kExitBroken, checked.error().message);
  if (const int status = create_timeline(arguments); status >= 0) return status;
  options.timeline = arguments.timeline;
  if (const int status = acquire_lease(*installation, arguments); status >= 0) return status;
  options.server = arguments.server;
  const auto variables = gpupool::run::program_environment(*installation, options);
  if (!variables) return fail(kExitBroken, variables.error().message);
  if (!gpupool::run::set_variables(*variables)) return fail(kExitBroken, "out of memory");

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
