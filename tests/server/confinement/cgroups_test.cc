// Tests the workers' control groups in a delegated cgroup that the test creates. Needs root and a cgroup2
// mount. Tests that need controllers run in the guest of tests/softroce if this machine uses cgroup v1
// controllers.
#include "server/confinement/cgroups.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "tests/server/fake_device_library.h"
#include "tests/server/worker/sandbox/confined_children.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::server;
using namespace gpupool::testing;

namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool put(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  return written;
}

std::string mount_of_cgroups() {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string skipped, root, point;
    fields >> skipped >> skipped >> skipped >> root >> point;
    if (line.find(" - cgroup2 ") != std::string::npos && root == "/") return point;
  }
  return {};
}

// The process's cgroup v2 path, relative to the mount, from /proc/PID/cgroup.
std::string group_of(pid_t process) {
  std::istringstream lines(text_of("/proc/" + std::to_string(process) + "/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return {};
}

std::set<std::string> workers_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("worker-")) names.insert(entry.path().filename());
  }
  return names;
}

// An empty delegated cgroup; removed, with everything below it, on destruction.
struct Delegated {
  std::string folder;
  Delegated() {
    const std::string mount = mount_of_cgroups();
    if (::geteuid() != 0 || mount.empty()) return;
    const bool guest = std::getenv("GPUPOOL_SOFTROCE") != nullptr;
    for (const char* const controller : {"+memory", "+pids", "+cpu"}) {
      if (guest) REQUIRE(put(mount + "/cgroup.subtree_control", controller));
    }
    const std::string made = mount + "/gpupool-test-" + std::to_string(::getpid());
    if (::mkdir(made.c_str(), 0755) != 0) return;
    folder = made;
    // Marks the cgroup as delegated, as systemd does.
    (void)::setxattr(folder.c_str(), "user.delegate", "1", 1, 0);
  }
  ~Delegated() {
    if (folder.empty()) return;
    put(folder + "/cgroup.kill", "1");
    (void)eventually([&] {
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.is_directory()) ::rmdir(entry.path().c_str());
      }
      return ::rmdir(folder.c_str()) == 0;
    });
  }
  Delegated(const Delegated&) = delete;
  Delegated& operator=(const Delegated&) = delete;

  bool possible() const {
    if (folder.empty()) report_skip("only root makes a cgroup, of version 2, for poold");
    return !folder.empty();
  }
  bool has(const std::string& controller) const {
    return (" " + text_of(folder + "/cgroup.controllers")).find(" " + controller) != std::string::npos;
  }
  // Returns false and reports a skip if the cgroup lacks the controller: cgroup v1 uses it, or the host does
  // not delegate it.
  bool limits(const std::string& controller) const {
    if (!has(controller)) report_skip("cgroups of version 2 have no controller '" + controller + "' here");
    return has(controller);
  }
  bool enter() const { return put(folder + "/cgroup.procs", "0"); }
  // Command prefix that starts a PooldProcess in the cgroup.
  std::vector<std::string> launcher() const {
    return {"sh", "-c", "echo 0 >\"$0\"/cgroup.procs && exec \"$@\"", folder};
  }
};

bool become_nobody() {
  return ::setresgid(kNobody, kNobody, kNobody) == 0 && ::setresuid(kNobody, kNobody, kNobody) == 0;
}

bool is_gone(const std::string& folder) {
  return ::access(folder.c_str(), F_OK) != 0;
}

// Forks up to `most` children that sleep; returns how many forks succeeded.
unsigned fork_children(unsigned most, int& error) {
  for (unsigned count = 0; count < most; ++count) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    error = errno;
    if (child < 0) return count;
  }
  return most;
}

}  // namespace

TEST_CASE("a cgroup counts as delegated if poold can write to it and is alone in it") {
  CHECK_FALSE(find_delegated_cgroup());  // this process is in the root cgroup or shares one with its parent
  const Delegated group;
  if (!group.possible()) return;
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          const auto found = find_delegated_cgroup();
          check(found && found->folder == group.folder && found->has("pids") == group.has("pids"));
        }) == 0);
  CHECK(in_child([&](Checks& check) {
          check(group.enter() && become_nobody());
          const auto found = find_delegated_cgroup();
          check(!found && found.error().message.find("Delegate=yes") != std::string::npos);
        }) == 0);
  const Victim other([&] { return group.enter(); });
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          const auto found = find_delegated_cgroup();
          check(!found && found.error().message.find("not alone") != std::string::npos);
        }) == 0);
  CHECK(other.lives());
}

TEST_CASE("poold moves into its own child cgroup and removes cgroups of an earlier poold") {
  const Delegated group;
  if (!group.possible()) return;
  for (const char* const name : {"/worker-3", "/worker-7"})
    REQUIRE(::mkdir((group.folder + name).c_str(), 0755) == 0);
  const Victim left([&] { return put(group.folder + "/worker-7/cgroup.procs", "0"); });
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          const auto cgroups = Cgroups::open({});
          check(cgroups.ok() && group_of(::getpid()).ends_with("/poold"));
          check(eventually([&] { return workers_in(group.folder).empty(); }));
          check(cgroups && (*cgroups)->next_folder() == group.folder + "/worker-8");
        }) == 0);
  CHECK(await_gone(left.pid()));
  CHECK(workers_in(group.folder).empty());
}

TEST_CASE("poold does not touch the cgroup of another poold") {
  const Delegated group;
  if (!group.possible()) return;
  REQUIRE(::mkdir((group.folder + "/poold").c_str(), 0755) == 0);
  REQUIRE(::mkdir((group.folder + "/worker-1").c_str(), 0755) == 0);
  const Victim other([&] { return put(group.folder + "/poold/cgroup.procs", "0"); });
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          const auto cgroups = Cgroups::open({});
          check(!cgroups && cgroups.error().message.find("another process runs in") != std::string::npos);
        }) == 0);
  CHECK(other.lives());
  CHECK(workers_in(group.folder).size() == 1);
}

TEST_CASE("the cgroup of a worker is removed together with processes left in it") {
  const Delegated group;
  if (!group.possible()) return;
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          const auto cgroups = Cgroups::open({});
          check(cgroups.ok());
          if (!cgroups) return;
          const std::string folder = (*cgroups)->next_folder();
          check(in_child([&](Checks& within) {
                  within(enter_cgroup(folder, (*cgroups)->settings()).ok() &&
                         group_of(::getpid()).ends_with("/worker-1"));
                  int error = 0;
                  within(fork_children(2, error) == 2);
                }) == 0);
          check(!is_gone(folder));  // its children still run in it
          const Cgroups::WorkerExit end = (*cgroups)->finish_worker(folder);
          check(end.killed.empty() && end.refused_threads == 0);
          check(eventually([&] { return is_gone(folder); }));
        }) == 0);
}

TEST_CASE("a busy cgroup is removed later and does not delay poold's exit") {
  const Delegated group;
  if (!group.possible()) return;
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          auto cgroups = Cgroups::open({});
          check(cgroups.ok());
          if (!cgroups) return;
          const std::string first = (*cgroups)->next_folder(), second = (*cgroups)->next_folder();
          for (const std::string& folder : {first, second}) {
            check(::mkdir(folder.c_str(), 0755) == 0 && ::mkdir((folder + "/sub").c_str(), 0755) == 0);
            (*cgroups)->finish_worker(folder);
          }
          check(::rmdir((first + "/sub").c_str()) == 0);
          check(eventually([&] { return is_gone(first); }));
          check(!is_gone(second));
          cgroups->reset();
          check(::rmdir((second + "/sub").c_str()) == 0 && ::rmdir(second.c_str()) == 0);
        }) == 0);
}

TEST_CASE("a worker can neither leave its cgroup nor change its limits") {
  const Delegated group;
  if (!group.possible()) return;
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          const auto cgroups = Cgroups::open({});
          check(cgroups.ok());
          if (!cgroups) return;
          const std::string folder = (*cgroups)->next_folder();
          check(in_child([&](Checks& within) {
                  within(enter_cgroup(folder, (*cgroups)->settings()).ok() && become_nobody());
                  for (const std::string& file :
                       {group.folder + "/cgroup.procs", group.folder + "/poold/cgroup.procs",
                        folder + "/cgroup.procs", folder + "/cgroup.subtree_control"}) {
                    within(refused(::open(file.c_str(), O_WRONLY), EACCES));
                  }
                  within(refused(::mkdir((folder + "/sub").c_str(), 0755), EACCES));
                }) == 0);
          (*cgroups)->finish_worker(folder);
        }) == 0);
}

TEST_CASE("each worker runs in its own cgroup which is removed afterwards") {
  const Delegated group;
  if (!group.possible()) return;
  PooldProcess poold(kDevice, kTellsOfWorkers, {}, group.launcher());
  RawClient first(poold.endpoint()), second(poold.endpoint());
  const auto one = static_cast<pid_t>(first.open().worker_pid),
             other = static_cast<pid_t>(second.open().worker_pid);
  const std::string path = group_of(one), folder = group.folder + "/" + fs::path(path).filename().string();
  CHECK(fs::path(path).filename().string().starts_with("worker-"));
  CHECK(path != group_of(other));
  CHECK(group_of(poold.pid()) == fs::path(path).parent_path() / "poold");
  CHECK_FALSE(is_gone(folder));
  if (group.has("pids")) CHECK(text_of(folder + "/pids.max") == "4096\n");
  if (group.has("memory"))
    // No limit applies, because softgpu's device memory is host memory.
    CHECK(text_of(folder + "/memory.max") == "max\n");
  first.send_command(wire::Command::goodbye);
  CHECK(eventually([&] { return is_gone(folder); }));
  second.ping();
  CHECK(poold.stop() == 0);
  CHECK(workers_in(group.folder).empty());
}

TEST_CASE("a worker that cannot enter its cgroup does not start") {
  const Delegated group;
  if (!group.possible()) return;
  const std::string deepest = group.folder + "/cgroup.max.depth";
  PooldProcess poold(kDevice, {"--idle-workers", "1"}, {}, group.launcher());
  REQUIRE(put(deepest, "0"));
  RawClient client(poold.endpoint());
  client.open();
  CHECK(poold.await_log("worker_start_failed"));
  CHECK(poold.log().find("cannot make the cgroup " + group.folder + "/worker-") != std::string::npos);
  client.ping();
  REQUIRE(put(deepest, "max"));
  RawClient next(poold.endpoint());
  next.open();
}

TEST_CASE("poold's options become the limits of the workers' cgroups") {
  const Delegated group;
  if (!group.possible() || !group.limits("memory") || !group.limits("pids") || !group.limits("cpu")) return;
  const TemporaryFolder folder;
  const std::string config =
      folder.write("poold.toml", "worker-memory-mib = 300\nworker-threads = 100\nworker-cpus = 1\n");
  ::chmod(config.c_str(), 0600);
  PooldProcess poold(kDevice, {"--config", config, "--worker-cpus", "3"}, {}, group.launcher());
  RawClient client(poold.endpoint());
  const auto worker = static_cast<pid_t>(client.open().worker_pid);
  const auto value = [&](const char* file) {
    return text_of(group.folder + "/" + fs::path(group_of(worker)).filename().string() + "/" + file);
  };
  CHECK(value("memory.max") == "314572800\n");
  CHECK(value("memory.oom.group") == "1\n");
  CHECK(value("pids.max") == "100\n");
  CHECK(value("cpu.max") == "300000 100000\n");
  CHECK(text_of(group.folder + "/poold/cpu.weight") == "1000\n");
}

TEST_CASE("only the worker that exceeds its host memory limit is killed and poold logs the reason") {
  const Delegated group;
  if (!group.possible() || !group.limits("memory")) return;
  PooldProcess poold(kDevice, {"--worker-memory-mib", "200"}, {{"FAKE_DEVICE", "hostile:memory"}},
                     group.launcher());
  RawClient victim(poold.endpoint()), other(poold.endpoint());
  const auto worker = static_cast<pid_t>(victim.open().worker_pid);
  other.open();
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  CHECK(victim.await_end());
  CHECK(poold.await_log("session_ended"));
  const std::string log = poold.log();
  const std::string line = log.substr(log.find("session_ended"));
  INFO(line);
  CHECK(line.find("session=1") != std::string::npos);
  CHECK(line.find("killed: exceeded its limit of 200 MiB of host memory; raise --worker-memory-mib") !=
        std::string::npos);
  CHECK(log.find("fake_took_memory") == std::string::npos);
  other.ping();
  CHECK(poold.stop() == 0);
  CHECK(workers_in(group.folder).empty());
}

TEST_CASE("the process limit stops a fork bomb in a worker and poold logs it") {
  const Delegated group;
  if (!group.possible() || !group.limits("pids")) return;
  CHECK(in_child([&](Checks& check) {
          check(group.enter());
          const auto cgroups = Cgroups::open({.memory_mib = 0, .threads = 32, .cpus = 0});
          check(cgroups.ok());
          if (!cgroups) return;
          const std::string folder = (*cgroups)->next_folder();
          check(in_child([&](Checks& within) {
                  within(enter_cgroup(folder, (*cgroups)->settings()).ok());
                  int error = 0;
                  within(fork_children(200, error) == 31 && error == EAGAIN);
                }) == 0);
          check((*cgroups)->finish_worker(folder).refused_threads != 0);
          check(eventually([&] { return is_gone(folder); }));
        }) == 0);
}

TEST_CASE("--check-host reports whether workers' cgroups have the needed controllers") {
  const Delegated group;
  if (!group.possible()) return;
  const auto line_of = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words = group.launcher();
    words.insert(words.end(), {program_path("poold"), "--check-host"});
    words.insert(words.end(), options.begin(), options.end());
    const std::string output = run_to_end(words).output;
    const size_t line = output.find("control group");
    REQUIRE(line != std::string::npos);
    return output.substr(line, output.find('\n', line) - line);
  };
  const std::string usual = line_of({});
  INFO(usual);
  if (group.has("pids")) {
    CHECK(usual.find(" yes ") != std::string::npos);
    CHECK(usual.find("at most 4096 threads, no limit of host memory, no limit of processors") !=
          std::string::npos);
  } else {
    CHECK(usual.find(" no ") != std::string::npos);
    CHECK(usual.find(group.folder + " has no controller for pids") != std::string::npos);
  }
  CHECK(line_of({"--worker-threads", "0"}).find(" unused ") != std::string::npos);
  CHECK(text_of(group.folder + "/cgroup.procs").empty());  // --check-host moves no process
  CHECK_FALSE(fs::exists(group.folder + "/poold"));
}
