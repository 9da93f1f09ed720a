#include "server/confinement/layers.h"

#include <grp.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <utility>

#include "server/confinement/landlock.h"
#include "server/confinement/namespaces.h"

namespace gpupool::server {
namespace {

using State = Layer::State;
namespace sandbox = worker::sandbox;

constexpr uid_t kNobody = 65534;

Layer holds(const char* name, std::string text) {
  return {name, State::holds, std::move(text)};
}
Layer missing(const char* name, std::string text) {
  return {name, State::missing, std::move(text)};
}

// False if poold's user namespace does not map the user. A container's may map only some of the host's users.
bool has_user(uint64_t number) {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  while (map >> inside >> outside >> count) {
    if (number >= inside && number - inside < count) return true;
  }
  return !map.is_open();
}

Layer other_user(const ConfinementSettings& settings) {
  constexpr const char* kName = "other user";
  if (::geteuid() != 0) {
    return missing(kName,
                   "poold is not root: workers run as its user, and can signal its processes and read its "
                   "files unless another layer prevents it");
  }
  if (settings.users.empty()) return missing(kName, "--worker-users is empty: workers run as root");
  const auto users = WorkerUsers::parse(settings.users);
  if (!users) return missing(kName, users.error().message);
  if (!users->is_number()) {
    return ::getpwnam(settings.users.c_str()) ? holds(kName, "workers run as '" + settings.users + "'")
                                              : missing(kName, "there is no user '" + settings.users + "'");
  }
  if (!has_user(users->first()) || !has_user(users->last())) {
    return missing(
        kName, "poold's user namespace does not map the users " + settings.users + " (/proc/self/uid_map)");
  }
  return holds(kName, "workers run as " + settings.users);
}

Layer user_per_session(const ConfinementSettings& settings) {
  constexpr const char* kName = "user per session";
  if (::geteuid() != 0) return missing(kName, "poold is not root");
  const auto users = WorkerUsers::parse(settings.users);
  if (users && users->one_per_worker()) return holds(kName, std::to_string(users->size()) + " users");
  return missing(kName,
                 "all workers run as one user: only the other layers separate tenants' workers; set "
                 "--worker-users to a range such as 70000-70999");
}

Layer system_calls(const ConfinementSettings& settings) {
  constexpr const char* kName = "system calls";
  if (!settings.filters) return missing(kName, "builds with sanitizers do not filter system calls");
  if (settings.sandbox == Sandbox::log)
    return missing(kName, "--sandbox=log: forbidden system calls are logged, not refused");
  const uint32_t action = SECCOMP_RET_ERRNO;
  if (::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) {
    return missing(kName, "this kernel does not support seccomp filters (CONFIG_SECCOMP_FILTER)");
  }
  return holds(kName, "seccomp allow-list");
}

Layer of_landlock(const char* name, int needed, const char* linux, const std::string& what,
                  const char* effect) {
  const int version = sandbox::landlock_version();
  if (version >= needed) return holds(name, what);
  if (version == 0) {
    return missing(name, std::string("this kernel does not support Landlock (needs Linux 5.13; may be "
                                     "disabled by lsm= on the kernel's command line): ") +
                             effect);
  }
  return missing(name, "Landlock ABI version " + std::to_string(version) + " is too old, needs " +
                           std::to_string(needed) + " (Linux " + linux + "): " + effect);
}

// Lets a child process make a worker's namespaces and become another user, and checks that the kernel hides
// poold from it.
sandbox::Namespaces try_namespaces() {
  const std::string poold = "/proc/" + std::to_string(::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    sandbox::Namespaces made = sandbox::separate({.processes = true, .ipc = true, .network = true});
    made.processes = made.processes && ::setgroups(0, nullptr) == 0 &&
                     ::setresgid(kNobody, kNobody, kNobody) == 0 &&
                     ::setresuid(kNobody, kNobody, kNobody) == 0 && ::access(poold.c_str(), F_OK) != 0;
    ::_exit((made.processes ? 1 : 0) | (made.ipc ? 2 : 0) | (made.network ? 4 : 0));
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return {};
  const int made = WEXITSTATUS(status);
  return {.processes = (made & 1) != 0, .ipc = (made & 2) != 0, .network = (made & 4) != 0};
}

std::vector<Layer> of_namespaces(const ConfinementSettings& settings) {
  const bool other_users = ::geteuid() == 0 && !settings.users.empty();
  const sandbox::Namespaces made = other_users ? try_namespaces() : sandbox::Namespaces{};
  const std::string why = other_users
                              ? "cannot create the namespace (needs CAP_SYS_ADMIN, also in "
                                "CapabilityBoundingSet of the unit, and kernel support): "
                              : "namespaces need poold to be root and workers to run as other users: ";
  std::vector<Layer> layers;
  layers.push_back(made.processes ? holds("processes", "a worker's /proc shows only its own processes")
                                  : missing("processes", why + "a worker can list all processes"));
  layers.push_back(made.ipc ? holds("IPC", "a namespace for each worker")
                            : missing("IPC", why + "only the system call filter blocks System V IPC"));
  constexpr const char* kNetwork = "network";
  if (settings.rdma) {
    layers.push_back(
        missing(kNetwork, "workers use RDMA, which needs the host's network namespace; see --rdma no"));
  } else {
    layers.push_back(made.network
                         ? holds(kNetwork, "a namespace for each worker")
                         : missing(kNetwork, why + "only the other layers block the host's network"));
  }
  return layers;
}

// Returns the controllers that the limits need and the cgroup does not have.
std::string missing_controllers(const DelegatedCgroup& group, const WorkerLimits& limits) {
  std::string names;
  const std::pair<const char*, bool> wanted[] = {
      {"memory", limits.memory_mib != 0}, {"pids", limits.threads != 0}, {"cpu", limits.cpus != 0}};
  for (const auto& [name, is_wanted] : wanted) {
    if (is_wanted && !group.has(name)) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

std::string limit_text(unsigned limit, const char* unit, const char* what) {
  return (limit != 0 ? "at most " + std::to_string(limit) + unit : "no limit of ") + what;
}

Layer of_cgroup(const ConfinementSettings& settings) {
  constexpr const char* kName = "control group";
  const WorkerLimits& limits = settings.limits;
  if (!limits.any())
    return {kName, State::unused, "disabled: --worker-threads, --worker-memory-mib and --worker-cpus are 0"};
  const std::string effect = ": a worker can use up the host's memory, threads and processors";
  const auto group = find_delegated_cgroup();
  if (!group) return missing(kName, group.error().message + effect);
  if (const std::string names = missing_controllers(*group, limits); !names.empty())
    return missing(kName, group->folder + " has no controller for " + names + effect);
  if (::geteuid() != 0 && sandbox::landlock_version() < sandbox::kLandlockFiles) {
    return missing(kName,
                   "workers run as poold's user and, without Landlock, can leave their cgroup" + effect);
  }
  return holds(kName, "one for each worker: " + limit_text(limits.threads, " ", "threads") + ", " +
                          limit_text(limits.memory_mib, " MiB of ", "host memory") + ", " +
                          limit_text(limits.cpus, " ", "processors"));
}

}  // namespace

std::vector<Layer> check_layers(const ConfinementSettings& settings) {
  if (settings.sandbox == Sandbox::off)
    return {missing("all", "--sandbox=off: workers are not confined at all")};
  std::vector<Layer> layers{other_user(settings), user_per_session(settings), system_calls(settings)};
  layers.push_back(of_landlock("files", sandbox::kLandlockFiles, "5.13",
                               "system folders, devices, shared memory",
                               "a worker can open all files that its user can"));
  layers.push_back(of_landlock("TCP", sandbox::kLandlockTcp, "6.7", "no listening ports and no connections",
                               "only the system call filter blocks TCP"));
  layers.push_back(of_landlock("signals and sockets", sandbox::kLandlockScopes, "6.12",
                               "no signals and no abstract Unix sockets of other processes",
                               "only the worker's user and the system call filter block them"));
  for (Layer& layer : of_namespaces(settings)) layers.push_back(std::move(layer));
  layers.push_back(of_cgroup(settings));
  return layers;
}

bool print_layers(const std::vector<Layer>& layers) {
  std::printf("%-20s %-9s %s\n", "LAYER", "EFFECTIVE", "");
  for (const Layer& layer : layers) {
    std::printf("%-20s %-9s %s\n", layer.name.c_str(),
                layer.state == State::holds     ? "yes"
                : layer.state == State::missing ? "no"
                                                : "unused",
                layer.text.c_str());
  }
  return std::none_of(layers.begin(), layers.end(),
                      [](const Layer& layer) { return layer.state == State::missing; });
}

}  // namespace gpupool::server
