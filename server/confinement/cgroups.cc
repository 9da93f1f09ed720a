#include "server/confinement/cgroups.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "common/blocked_signals.h"
#include "common/log/log.h"

namespace gpupool::server {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kControllers[] = {"memory", "pids", "cpu"};
constexpr const char* kOwn = "/poold";
constexpr std::string_view kWorker = "worker-";
constexpr std::chrono::milliseconds kPause{20};
constexpr unsigned kMostTries = 500;  // 10 s: a process may be inside a driver
constexpr std::chrono::seconds kLastPatience{1};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Writes `text` with one write(), as the kernel requires. On failure returns false with errno set.
bool write_file(const std::string& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  ::close(file);
  errno = error;
  return written;
}

Error failed(const std::string& what, const std::string& path, int error) {
  return {ErrorCode::limit, "cannot " + what + " " + path + ": " + std::generic_category().message(error)};
}

Error none(const std::string& why) {
  return {ErrorCode::unavailable, why};
}

// Returns the number behind `key` in a file of lines "key number", or 0 if there is none.
uint64_t count_of(const std::string& path, const std::string& key) {
  std::istringstream lines(read_file(path));
  std::string name;
  for (uint64_t number = 0; lines >> name >> number;) {
    if (name == key) return number;
  }
  return 0;
}

// Returns true if the cgroup no longer exists.
bool remove_cgroup(const std::string& folder) {
  (void)write_file(folder + "/cgroup.kill",
                   "1");  // Linux 5.14; before it only the worker itself is sure to be gone
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

// Returns the folder of this process's cgroup. /proc/self/cgroup has its path from the root of the hierarchy,
// of which a mount may show only a part.
std::optional<std::string> own_folder() {
  std::ifstream own("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(own, line)) {
    if (line.starts_with("0::/")) path = line.substr(3);
  }
  if (path.empty()) return std::nullopt;
  std::ifstream mounts("/proc/self/mountinfo");
  while (std::getline(mounts, line)) {
    std::istringstream fields(line);
    std::string skipped, root, point, separator, type;
    fields >> skipped >> skipped >> skipped >> root >> point;
    while (fields >> separator && separator != "-") {
    }
    if (!(fields >> type) || type != "cgroup2") continue;
    if (root == "/") root.clear();
    if (path != root && !path.starts_with(root + "/")) continue;
    const std::string below = path.substr(root.size());
    return below == "/" ? point : point + below;
  }
  return std::nullopt;
}

// True if systemd manages the cgroup and has not delegated it. systemd marks delegated cgroups with an
// extended attribute. Only root needs this check: it can write to every cgroup, ordinary users only to
// delegated ones.
bool is_systemds(const std::string& folder) {
  if (::geteuid() != 0 || ::access("/run/systemd/system", F_OK) != 0) return false;
  char mark = 0;
  const auto marked = [&](const char* name) {
    return ::getxattr(folder.c_str(), name, &mark, 1) == 1 && mark == '1';
  };
  return !marked("user.delegate") && !marked("trusted.delegate");
}

// Returns "memory.max=..., ..." for the limits that the cgroup supports. `own` has the files that workers'
// cgroups will have.
std::string settings_for(const DelegatedCgroup& group, const WorkerLimits& limits) {
  const std::string own = group.folder + kOwn;
  std::string settings;
  const auto set = [&](const char* file, const std::string& value) {
    if (::access((own + "/" + file).c_str(), F_OK) == 0)
      settings += (settings.empty() ? "" : ",") + std::string(file) + "=" + value;
  };
  if (group.has("memory")) {
    set("memory.oom.group", "1");
    if (limits.memory_mib != 0) set("memory.max", std::to_string(uint64_t{limits.memory_mib} << 20));
    if (limits.memory_mib != 0) set("memory.swap.max", "0");
  }
  if (group.has("pids") && limits.threads != 0) set("pids.max", std::to_string(limits.threads));
  if (group.has("cpu") && limits.cpus != 0)
    set("cpu.max", std::to_string(uint64_t{limits.cpus} * 100'000) + " 100000");
  return settings;
}

// Returns those of kControllers that the file lists.
std::vector<std::string> known_controllers(const std::string& file) {
  std::vector<std::string> known;
  std::istringstream there(read_file(file));
  for (std::string name; there >> name;) {
    if (std::find(std::begin(kControllers), std::end(kControllers), name) != std::end(kControllers))
      known.push_back(name);
  }
  return known;
}

// Enables the controllers for the cgroup's children. Returns those that could be enabled.
std::vector<std::string> enable(const DelegatedCgroup& group) {
  std::vector<std::string> enabled;
  for (const std::string& controller : group.controllers) {
    if (write_file(group.folder + "/cgroup.subtree_control", "+" + controller))
      enabled.push_back(controller);
    else
      log::warning(
          "confinement",
          {{"missing", "control group"},
           {"reason", failed("enable the controller " + controller + " in", group.folder, errno).message}});
  }
  return enabled;
}

}  // namespace

bool DelegatedCgroup::has(std::string_view controller) const {
  return std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
}

Result<DelegatedCgroup> find_delegated_cgroup() {
  const auto folder = own_folder();
  if (!folder) return none("no cgroup v2 hierarchy is mounted (usually at /sys/fs/cgroup)");
  const auto file = [&](const char* name) { return *folder + "/" + name; };
  if (::access(file("cgroup.type").c_str(), F_OK) != 0) {
    return none("poold is in " + *folder +
                ", the root cgroup, which cannot be delegated; start poold from its systemd unit");
  }
  for (const std::string& path : {*folder, file("cgroup.procs"), file("cgroup.subtree_control")}) {
    if (::access(path.c_str(), W_OK) != 0)
      return none("poold cannot write to " + path +
                  "; its unit needs Delegate=yes, and no ProtectControlGroups=yes");
  }
  if (is_systemds(*folder)) return none(*folder + " is not delegated to poold; its unit needs Delegate=yes");
  if (read_file(file("cgroup.type")) != "domain\n") {
    return none(*folder + " is a threaded cgroup, which cannot have child cgroups for processes");
  }
  if (read_file(file("cgroup.procs")) != std::to_string(::getpid()) + "\n") {
    return none("poold is not alone in " + *folder +
                ": other processes are there; start poold from its systemd unit, or in a cgroup of its own");
  }
  return DelegatedCgroup{.folder = *folder, .controllers = known_controllers(file("cgroup.controllers"))};
}

Result<std::unique_ptr<Cgroups>> Cgroups::open(const WorkerLimits& limits) {
  auto group = find_delegated_cgroup();
  if (!group) return group.error();
  const std::string own = group->folder + kOwn;
  if (::mkdir(own.c_str(), 0755) != 0 && errno != EEXIST) return failed("make the cgroup", own, errno);
  if (!read_file(own + "/cgroup.procs").empty()) {
    return Error{ErrorCode::limit,
                 "another process runs in " + own + "; each poold needs a cgroup of its own"};
  }
  if (!write_file(own + "/cgroup.procs", "0")) return failed("move poold to", own, errno);
  group->controllers = enable(*group);
  // poold's thread schedules turns on GPUs, and must not wait for a processor behind the threads of all
  // sessions.
  if (group->has("cpu")) (void)write_file(own + "/cpu.weight", "1000");
  std::unique_ptr<Cgroups> cgroups(new Cgroups(std::move(*group), limits, {}));
  return cgroups;
}

std::unique_ptr<Cgroups> Cgroups::take_over(const std::string& folder, const WorkerLimits& limits,
                                            const std::set<std::string>& in_use) {
  DelegatedCgroup group{.folder = folder,
                        .controllers = known_controllers(folder + "/cgroup.subtree_control")};
  return std::unique_ptr<Cgroups>(new Cgroups(std::move(group), limits, in_use));
}

Cgroups::Cgroups(DelegatedCgroup group, const WorkerLimits& limits, const std::set<std::string>& in_use)
    : group_(std::move(group)), limits_(limits), settings_(settings_for(group_, limits)) {
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(group_.folder, failure)) {  // left by a killed poold
    const std::string name = entry.path().filename();
    if (!name.starts_with(kWorker)) continue;
    uint64_t number = 0;
    std::from_chars(name.data() + kWorker.size(), name.data() + name.size(), number);
    next_ = std::max(next_, number + 1);
    if (!in_use.contains(entry.path())) ended_.push_back({entry.path()});
  }
  const BlockedSignals blocked;
  remover_ = std::thread([this] { remove_ended(); });
}

Cgroups::~Cgroups() {
  {
    const std::lock_guard lock(mutex_);
    stop_by_ = Clock::now() + kLastPatience;
  }
  changed_.notify_one();
  remover_.join();
}

void Cgroups::remove_ended() {
  std::unique_lock lock(mutex_);
  const auto stopping = [this] { return stop_by_ != Clock::time_point::max(); };
  for (;;) {
    changed_.wait(lock, [&] { return stopping() || !ended_.empty(); });
    if (ended_.empty() || Clock::now() > stop_by_) return;
    std::vector<Ended> busy = std::exchange(ended_, {});
    lock.unlock();
    std::erase_if(busy, [](Ended& one) {
      if (remove_cgroup(one.folder)) return true;
      if (++one.tries < kMostTries) return false;
      log::warning("cgroup_left", {{"cgroup", one.folder},
                                   {"reason", std::generic_category().message(errno)},
                                   {"effect", "the next poold removes it"}});
      return true;
    });
    lock.lock();
    if (busy.empty()) continue;
    ended_.insert(ended_.end(), std::make_move_iterator(busy.begin()), std::make_move_iterator(busy.end()));
    changed_.wait_for(lock, kPause);
  }
}

std::string Cgroups::next_folder() {
  return group_.folder + "/" + std::string(kWorker) + std::to_string(next_++);
}

Cgroups::WorkerExit Cgroups::finish_worker(const std::string& folder) {
  WorkerExit end{.killed = {}, .refused_threads = count_of(folder + "/pids.events", "max")};
  if (const std::string events = folder + "/memory.events"; count_of(events, "oom_kill") != 0) {
    // The kernel counts `oom` in the cgroup whose limit was reached.
    const bool own_limit = limits_.memory_mib != 0 && count_of(events, "oom") != 0;
    end.killed = own_limit ? "killed: exceeded its limit of " + std::to_string(limits_.memory_mib) +
                                 " MiB of host memory; raise --worker-memory-mib if programs need more"
                           : "killed: the host or poold's cgroup ran out of memory; limit each worker with "
                             "--worker-memory-mib";
  }
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back({folder});
  }
  changed_.notify_one();
  return end;
}

Result<void> enter_cgroup(const std::string& folder, std::string_view settings) {
  if (::mkdir(folder.c_str(), 0755) != 0) return failed("make the cgroup", folder, errno);
  const auto give_up = [&](Error error) {
    ::rmdir(folder.c_str());
    return error;
  };
  while (!settings.empty()) {
    const std::string_view one = settings.substr(0, settings.find(','));
    settings.remove_prefix(std::min(settings.size(), one.size() + 1));
    const size_t equals = one.find('=');
    if (equals == one.npos)
      return give_up({ErrorCode::invalid, "'" + std::string(one) + "' is not FILE=VALUE"});
    const std::string path = folder + "/" + std::string(one.substr(0, equals));
    if (!write_file(path, one.substr(equals + 1)))
      return give_up(failed("write " + std::string(one.substr(equals + 1)) + " to", path, errno));
  }
  if (!write_file(folder + "/cgroup.procs", "0")) return give_up(failed("enter the cgroup", folder, errno));
  return {};
}

}  // namespace gpupool::server
