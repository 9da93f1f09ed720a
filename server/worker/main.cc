// poold-worker: opens the device library, reports to poold that it is ready, waits for one client, runs its
// session, and ends. Started by poold only, with the control socket as descriptor 3 and a socket to poold for
// its log as descriptor 4.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "common/log/log.h"
#include "common/sanitizers.h"
#include "protocol/environment.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/transport/tls/context.h"
#include "protocol/wire/frame.h"
#include "server/confinement/cgroups.h"
#include "server/confinement/landlock.h"
#include "server/confinement/namespaces.h"
#include "server/handover/handover.h"
#include "server/worker/device/device_description.h"
#include "server/worker/device/device_library.h"
#include "server/worker/device/idle_context.h"
#include "server/worker/memory/memory_use.h"
#include "server/worker/sandbox/sandbox.h"
#include "server/worker/sandbox/sanitizer_reports.h"
#include "server/worker/serve.h"
#include "server/worker/session/control.h"

namespace gpupool::worker {
namespace {

// The sanitizers' runtime needs system calls that the filter denies.
constexpr bool kFiltersCalls = !kSanitized;

struct Arguments {
  std::string device;
  transport::RdmaOptions::Use rdma = transport::RdmaOptions::Use::never;
  bool tls = false;
  std::string user;
  bool own_user = false;
  bool idle_context = false;
  bool sandbox = true;
  sandbox::Calls other_calls = sandbox::Calls::refuse;
  std::string cache_folders;
  std::string cache_bytes;
  std::string cgroup;
  std::string cgroup_settings;
  pid_t parent = 0;
  log::Level level = log::Level::info;
};

constexpr std::pair<std::string_view, std::string Arguments::*> kTexts[] = {
    {"--device", &Arguments::device},
    {"--user", &Arguments::user},
    {"--cache-folders", &Arguments::cache_folders},
    {"--cache-bytes", &Arguments::cache_bytes},
    {"--cgroup", &Arguments::cgroup},
    {"--cgroup-settings", &Arguments::cgroup_settings},
};

bool parse_arguments(int count, char** words, Arguments& out) {
  for (int at = 1; at + 1 < count; at += 2) {
    const std::string_view name = words[at];
    const std::string_view value = words[at + 1];
    const auto text = std::find_if(std::begin(kTexts), std::end(kTexts),
                                   [&](const auto& one) { return one.first == name; });
    bool good = text != std::end(kTexts);
    if (good) {
      out.*text->second = value;
    } else if (name == "--rdma") {
      out.rdma =
          value == "yes" ? transport::RdmaOptions::Use::if_possible : transport::RdmaOptions::Use::never;
      good = value == "yes" || value == "no";
    } else if (name == "--tls") {
      out.tls = value == "yes";
      good = value == "yes" || value == "no";
    } else if (name == "--own-user") {
      out.own_user = value == "yes";
      good = value == "yes" || value == "no";
    } else if (name == "--idle-context") {
      out.idle_context = value == "yes";
      good = value == "yes" || value == "no";
    } else if (name == "--sandbox") {
      out.sandbox = value != "off";
      out.other_calls = value == "log" ? sandbox::Calls::log : sandbox::Calls::refuse;
      good = value == "on" || value == "off" || value == "log";
    } else if (name == "--parent") {
      good = std::from_chars(value.begin(), value.end(), out.parent).ec == std::errc();
    } else if (name == "--log-level") {
      good = log::parse(value, out.level);
    }
    if (!good) return false;
  }
  return count % 2 == 1 && !out.device.empty() && out.parent > 0;
}

// poold's own descriptors are closed on exec. This closes descriptors that poold itself has inherited.
void close_inherited() {
  constexpr int kFirst = server::kSessionPageDescriptor + 1;
  if (::syscall(SYS_close_range, kFirst, ~0u, 0) == 0) return;
  for (int descriptor = kFirst; descriptor < 4096; ++descriptor) ::close(descriptor);  // Linux before 5.9
}

// Opens `path` under this number, so that no other file gets it before poold sends the right descriptor.
bool reserve_descriptor(const char* path, int flags, int number) {
  const int opened = ::open(path, flags | O_CLOEXEC);
  if (opened == number) return true;
  const bool reserved = opened >= 0 && ::dup3(opened, number, O_CLOEXEC) >= 0;
  if (opened >= 0) ::close(opened);
  return reserved;
}

// softgpu caches compiled code in a file that poold sends once the tenant is known; until then the number is
// reserved. The cache is never a folder, because the workers of all tenants could write there.
bool reserve_code_descriptor() {
  return reserve_descriptor("/dev/null", O_RDWR, server::kCodeDescriptor) &&
         set_environment("SOFTGPU_CACHE", "fd:" + std::to_string(server::kCodeDescriptor));
}

// NVIDIA's driver reads these variables in cuInit, before the tenant is known. They name the folder by a
// descriptor, which becomes the tenant's folder when the session starts; until then it is a folder where no
// file can be created.
bool set_driver_cache(const std::string& bytes) {
  const std::string path = "/proc/self/fd/" + std::to_string(server::kCacheDescriptor);
  return reserve_descriptor("/sys", O_RDONLY | O_DIRECTORY, server::kCacheDescriptor) &&
         set_environment("CUDA_CACHE_PATH", path) && set_environment("CUDA_CACHE_MAXSIZE", bytes);
}

// Moves the message's descriptor to the given number. Returns false if the message is of another kind.
bool take_descriptor(Result<server::ControlMessage>& message, server::ControlKind kind, int number) {
  if (!message || message->kind != kind) return false;
  ::dup3(message->descriptor, number, O_CLOEXEC);
  ::close(message->descriptor);
  return true;
}

// The session ends by itself when poold shuts down. If it cannot, because its thread is inside the driver,
// the process ends: without poold it would not be supervised or accounted for.
void exit_without_poold() {
  constexpr int kGrace = 1500;  // ms; poold kills after 2 s
  ::poll(nullptr, 0, kGrace);
  ::_exit(server::kWorkerPooldGone);
}

int fail_to_start(const std::string& why) {
  // The send only fails if poold is gone.
  (void)server::send_control<server::ControlKind::failed>(server::kControlDescriptor, {},
                                                          why.substr(0, server::kMaxControlPayload));
  return server::kWorkerDeviceUnusable;
}

// Must be called again after a change of the user, which resets PR_SET_PDEATHSIG.
bool dies_with_poold(const Arguments& arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ::getppid() == arguments.parent;  // false: poold ended before the call of prctl
}

// A worker that uses RDMA keeps its network namespace, where its devices and their addresses are.
sandbox::Namespaces wanted_namespaces(const Arguments& arguments) {
  const bool uses_rdma = arguments.rdma != transport::RdmaOptions::Use::never && transport::has_rdma_device();
  return {.processes = true, .ipc = true, .network = !uses_rdma};
}

// Runs between the loading of the device library, which may need files that only poold's user can read, and
// cuInit, which creates files and threads.
Result<void> confine(const Arguments& arguments) {
  if (!arguments.sandbox) return {};
  const int processes = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // poold has reported what is not possible
  if (::geteuid() == 0 && !arguments.user.empty()) (void)sandbox::separate(wanted_namespaces(arguments));
  Result<void> confined = sandbox::drop_user(arguments.user);
  if (confined && !dies_with_poold(arguments)) confined = Error{ErrorCode::closed, "poold has exited"};
  if (confined && arguments.own_user) {
    confined = sandbox::claim_user(processes);
    ::umask(077);  // the worker's group or the host's settings might give others access to its files
  }
  ::close(processes);  // would give access to processes outside of the namespace
  if (!confined) return confined;
  return sandbox::restrict_files({std::filesystem::path(arguments.device).parent_path()},
                                 arguments.cache_folders);
}

int run(const Arguments& arguments) {
  // This comes first, while the process still has poold's user, so that the limits also apply to the device
  // library.
  if (!arguments.cgroup.empty()) {
    if (const auto entered = server::enter_cgroup(arguments.cgroup, arguments.cgroup_settings); !entered)
      return fail_to_start(entered.error().message);
  }
  // The client implements this variable: a blocking launch would keep the executor from commands that let the
  // launch complete.
  ::unsetenv("CUDA_LAUNCH_BLOCKING");  // NOLINT(concurrency-mt-unsafe): the process has one thread yet
  if (arguments.tls) {                 // while files can still be opened
    if (const auto ready = transport::tls::Context::with_psk(transport::Side::server); !ready)
      return fail_to_start(ready.error().message);
  }
  auto library = DeviceLibrary::load(arguments.device, [&arguments] { return confine(arguments); });
  if (!library) return fail_to_start(library.error().message);
  auto devices = describe_devices(**library);
  if (!devices) return fail_to_start(devices.error().message);
  describe_partitions(**library, *devices);
  auto memory_use = open_memory_use(**library, *devices);
  const AddressRange range = reserve_addresses(**library, *devices);
  transport::RdmaOptions rdma = transport::rdma_options_from_environment([](const std::string& mistake) {
    log::warning("rdma_setting_ignored", {{"reason", mistake}});
  });
  rdma.use = arguments.rdma;

  if (kFiltersCalls && arguments.sandbox) {
    if (const auto restricted = sandbox::restrict_calls(arguments.other_calls); !restricted)
      return fail_to_start(restricted.error().message);
  }
  const IdleContext idle_context =
      arguments.idle_context ? make_idle_context(**library, memory_use) : IdleContext{};
  const auto told = server::send_control<server::ControlKind::ready>(server::kControlDescriptor, {},
                                                                     summarize_devices(**library, *devices));
  // Nothing has run on the device before the first client, so the library's exit handlers have nothing to
  // wait for.
  if (!told)
    std::exit(server::kWorkerPooldGone);  // NOLINT(concurrency-mt-unsafe): no other thread ends the process
  auto page = quota::SharedPage<quota::SessionPage>::open(server::kSessionPageDescriptor);
  auto message = server::receive_control(server::kControlDescriptor);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread ends the process
  if (!message && message.error().code == ErrorCode::closed) std::exit(server::kWorkerOrderly);
  if (!page || !message || message->kind != server::ControlKind::account) return server::kWorkerControlBroken;
  auto account = quota::SharedPage<quota::Account>::open(message->descriptor);
  const uint32_t slot = message->body<server::packet::Account>().slot;
  if (!account || slot >= quota::kMaxSessionsPerTenant) return server::kWorkerControlBroken;
  const Usage usage{std::move(*page), std::move(*account), slot};
  std::vector<quota::Groups> groups(message->payload.size() / sizeof(quota::Groups));
  if (!groups.empty())
    std::memcpy(groups.data(), message->payload.data(), groups.size() * sizeof(quota::Groups));
  message = server::receive_control(server::kControlDescriptor);
  if (take_descriptor(message, server::ControlKind::code, server::kCodeDescriptor))
    message = server::receive_control(server::kControlDescriptor);
  if (take_descriptor(message, server::ControlKind::cache_folder, server::kCacheDescriptor))
    message = server::receive_control(server::kControlDescriptor);
  if (!message || message->kind != server::ControlKind::session || message->descriptor < 0)
    return server::kWorkerControlBroken;
  Control& control =
      *new Control(server::kControlDescriptor, exit_without_poold);  // lives as long as the process
  return serve({**library, std::move(*devices), range, rdma, arguments.tls, control, usage, std::move(groups),
                std::move(memory_use), idle_context},
               *message);
}

}  // namespace
}  // namespace gpupool::worker

int main(int count, char** words) {
  ::prctl(PR_SET_NAME, "poold-worker", 0, 0, 0);  // poold executes it as a descriptor
  using namespace gpupool;
  worker::Arguments arguments;
  if (!worker::parse_arguments(count, words, arguments) || ::fcntl(server::kControlDescriptor, F_GETFD) < 0) {
    std::fputs("poold-worker: must be started by poold; see poold --help\n", stderr);
    return server::kWorkerUsage;
  }
  if (!worker::dies_with_poold(arguments)) return server::kWorkerPooldGone;
  if (arguments.sandbox && !worker::sandbox::hide_memory()) return server::kWorkerUsage;
  worker::close_inherited();
  worker::open_sanitizer_reports();
  for (const int descriptor :
       {server::kControlDescriptor, server::kLogDescriptor, server::kSessionPageDescriptor}) {
    ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  }
  if (!worker::reserve_code_descriptor()) return server::kWorkerUsage;
  if (!arguments.cache_folders.empty() && !worker::set_driver_cache(arguments.cache_bytes))
    return server::kWorkerUsage;
  (void)::signal(SIGPIPE, SIG_IGN);  // writing to the log fails after poold has stopped reading it
  log::start_to_poold(server::kLogDescriptor, arguments.level);
  // _exit, because the device library's exit handlers may wait for an endless kernel.
  ::_exit(worker::run(arguments));
}
