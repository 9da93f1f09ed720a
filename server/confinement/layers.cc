#include "server/confinement/layers.h"

#include <linux/seccomp.h>
#include <pwd.h>
#include <sched.h>
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

#include "server/worker/landlock.h"

namespace gpupool::server {
namespace {

using State = Layer::State;
namespace landlock = worker::sandbox;

Layer holds(const char* name, std::string text) { return {name, State::holds, std::move(text)}; }
Layer missing(const char* name, std::string text) { return {name, State::missing, std::move(text)}; }

// A user namespace, as a container's, may know only some of the host's users.
bool has_user(uint64_t number) {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  while (map >> inside >> outside >> count) {
    if (number >= inside && number - inside < count) return true;
  }
  return !map.is_open();
}

Layer other_user(const ConfinementWish& wish) {
  constexpr const char* kName = "other user";
  if (::geteuid() != 0) return missing(kName, "poold is not root, so workers have its user and may signal its processes and read its files as far as no other layer keeps them from it");
  if (wish.users.empty()) return missing(kName, "--worker-users is empty, so workers stay root");
  const auto users = WorkerUsers::parse(wish.users);
  if (!users) return missing(kName, users.error().message);
  if (!users->is_number()) {
    return ::getpwnam(wish.users.c_str()) ? holds(kName, "workers become '" + wish.users + "'") : missing(kName, "there is no user '" + wish.users + "'");
  }
  if (!has_user(users->first()) || !has_user(users->last())) return missing(kName, "the user namespace of poold has no users " + wish.users + " (/proc/self/uid_map)");
  return holds(kName, "workers become " + wish.users);
}

Layer user_per_session(const ConfinementWish& wish) {
  constexpr const char* kName = "user per session";
  if (::geteuid() != 0) return missing(kName, "poold is not root");
  const auto users = WorkerUsers::parse(wish.users);
  if (users && users->one_each()) return holds(kName, std::to_string(users->size()) + " users");
  return missing(kName, "all workers have one user, so nothing but the other layers separates tenants' workers; give --worker-users a range such as 70000-70999");
}

Layer system_calls(const ConfinementWish& wish) {
  constexpr const char* kName = "system calls";
  if (!wish.filters) return missing(kName, "a build with a sanitizer does not filter them");
  if (wish.sandbox == Sandbox::log) return missing(kName, "--sandbox=log: they are logged, not refused");
  const uint32_t action = SECCOMP_RET_ERRNO;
  if (::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) return missing(kName, "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)");
  return holds(kName, "seccomp allow-list");
}

Layer of_landlock(const char* name, int needed, const char* linux, const std::string& what, const char* effect) {
  const int version = landlock::landlock_version();
  if (version >= needed) return holds(name, what);
  if (version == 0) return missing(name, std::string("this kernel has no Landlock (Linux 5.13; it may be switched off, see lsm= on its command line): ") + effect);
  return missing(name, "this kernel has version " + std::to_string(version) + " of Landlock, which needs " + std::to_string(needed) + " (Linux " + linux + "): " + effect);
}

// Whether a process of poold's user may make such a namespace.
Layer of_namespace(const char* name, int flag) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(flag) == 0 ? 0 : errno);
  int status = 0;
  const bool waited = child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  if (waited && WEXITSTATUS(status) == 0) return {name, State::unused, "possible here"};
  return {name, State::unused, "not possible here: " + (waited ? std::generic_category().message(WEXITSTATUS(status)) : std::string("no process to try it"))};
}

Layer of_cgroup() {
  constexpr const char* kName = "control group";
  std::ifstream own("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(own, line)) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  if (path.empty()) return {kName, State::unused, "not possible here: poold is in no cgroup of version 2"};
  const std::string folder = "/sys/fs/cgroup" + path;
  if (::access((folder + "/cgroup.procs").c_str(), W_OK) != 0) return {kName, State::unused, "not possible here: " + folder + " is not delegated to poold (Delegate=yes of its unit)"};
  return {kName, State::unused, "possible here: " + folder + " is delegated to poold"};
}

}  // namespace

std::vector<Layer> check_layers(const ConfinementWish& wish) {
  if (wish.sandbox == Sandbox::off) return {missing("all", "--sandbox=off: workers are not confined at all")};
  std::vector<Layer> layers{other_user(wish), user_per_session(wish), system_calls(wish)};
  layers.push_back(of_landlock("files", landlock::kLandlockFiles, "5.13", "system folders, devices, shared memory", "a worker can open whatever its user can"));
  layers.push_back(of_landlock("TCP", landlock::kLandlockTcp, "6.7", wish.outward ? "no ports; connections as --peers says" : "no ports, no connections",
                               "the filter of system calls alone keeps workers from it"));
  layers.push_back(of_landlock("signals and sockets", landlock::kLandlockScopes, "6.12", "no signals and no abstract Unix sockets of other processes",
                               "the other user and the filter of system calls alone keep workers from them"));
  constexpr std::pair<const char*, int> kNamespaces[] = {
      {"mount namespace", CLONE_NEWNS}, {"PID namespace", CLONE_NEWPID}, {"IPC namespace", CLONE_NEWIPC}, {"network namespace", CLONE_NEWNET}};
  for (const auto& [name, flag] : kNamespaces) layers.push_back(of_namespace(name, flag));
  layers.push_back(of_cgroup());
  return layers;
}

bool print_layers(const std::vector<Layer>& layers) {
  std::printf("%-20s %-7s %s\n", "LAYER", "HOLDS", "");
  for (const Layer& layer : layers) {
    std::printf("%-20s %-7s %s\n", layer.name.c_str(), layer.state == State::holds ? "yes" : layer.state == State::missing ? "no" : "unused", layer.text.c_str());
  }
  return std::none_of(layers.begin(), layers.end(), [](const Layer& layer) { return layer.state == State::missing; });
}

}  // namespace gpupool::server
