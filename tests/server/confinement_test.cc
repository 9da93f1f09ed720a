// Tests poold's part of worker confinement: worker users, poold's own secrets, and --check-host.
#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "server/confinement/landlock.h"
#include "server/confinement/namespaces.h"
#include "tests/server/fake_device_library.h"
#include "tests/server/worker/sandbox/confined_children.h"
#include "tests/support/catch.h"
#include "tests/support/lease_maker.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

constexpr uid_t kNobody = 65534;

// The line `Uid:` of /proc/PID/status, four user ids; empty if the process has exited.
std::string users_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Uid:")) return line.substr(4);
  }
  return {};
}

uid_t user_of(pid_t process) {
  uid_t real = 0, effective = 0, saved = 0, files = 0;
  std::istringstream(users_of(process)) >> real >> effective >> saved >> files;
  CHECK((real == effective && effective == saved && saved == files));
  return real;
}

// The hard limit of RLIMIT_NPROC, from /proc/PID/limits.
std::string most_threads(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/limits");
  std::string soft, hard;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Max processes"))
      std::istringstream(line.substr(std::string("Max processes").size())) >> soft >> hard;
  }
  return hard;
}

std::set<uid_t> users_of(const std::vector<pid_t>& processes) {
  std::set<uid_t> users;
  for (const pid_t process : processes) users.insert(user_of(process));
  return users;
}

// Command line of poold run as an ordinary user.
std::vector<std::string> ordinary_poold(const std::vector<std::string>& more) {
  std::vector<std::string> words;
  if (::geteuid() == 0) words = {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"};
  for (const std::string& word :
       {program_path("poold"), std::string("--listen"), std::string("tcp://127.0.0.1:0"),
        std::string("--admin-socket"), std::string("none")})
    words.push_back(word);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

bool can_make_namespaces() {
  if (::geteuid() != 0) return false;
  return in_child([](Checks& check) {
           const auto made = worker::sandbox::separate({.processes = true, .ipc = true, .network = true});
           check(made.processes && made.ipc && made.network);
         }) == 0;
}

// True if this host and this user support all layers.
bool all_layers() {
  return worker::sandbox::landlock_version() >= worker::sandbox::kLandlockScopes && can_make_namespaces();
}

std::string name_space(pid_t process, const std::string& kind) {
  return std::filesystem::read_symlink("/proc/" + std::to_string(process) + "/ns/" + kind);
}

bool has_descriptor_below(pid_t process, const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code closed;
    if (std::filesystem::read_symlink(entry.path(), closed).string().starts_with(folder)) return true;
  }
  return false;
}

// A folder with a copy of the device library that ordinary users can read.
struct DeviceFolder {
  TemporaryFolder folder;
  std::string library = folder.path() / "libdevice.so";
  DeviceFolder() {
    std::filesystem::copy_file(kDevice, library);
    std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  }
  std::string secret(const std::string& name) const {
    const std::string file = folder.write(name, "a secret of at least 32 characters\n");
    if (::geteuid() == 0) REQUIRE(::chown(file.c_str(), kNobody, kNobody) == 0);
    std::filesystem::permissions(file, std::filesystem::perms(0600));
    return file;
  }
  std::string secret_folder(const std::string& name) const {
    const std::string made = folder.path() / name;
    REQUIRE(::mkdir(made.c_str(), 0700) == 0);
    if (::geteuid() == 0) REQUIRE(::chown(made.c_str(), kNobody, kNobody) == 0);
    return made;
  }
};

}  // namespace

TEST_CASE("each session has its own user which a later session reuses") {
  if (::geteuid() != 0) return report_skip("only root's workers become other users");
  PooldProcess poold(kDevice, {"--worker-users", "61100-61102", "--max-sessions", "2", "--idle-workers", "1",
                               "--log-level", "debug"});
  std::set<uid_t> seen;
  for (size_t round = 0; round < 4; ++round) {
    RawClient first(poold.endpoint()), second(poold.endpoint());
    const auto one = static_cast<pid_t>(first.open().worker_pid),
               other = static_cast<pid_t>(second.open().worker_pid);
    CHECK(user_of(one) != user_of(other));
    CHECK(most_threads(one) == "4096");
    REQUIRE(eventually([&] {
      return poold.workers().size() == 3 && users_of(poold.workers()).size() == 3 &&
             !users_of(poold.workers()).contains(0);
    }));
    for (const uid_t user : users_of(poold.workers())) seen.insert(user);
    for (RawClient* const client : {&first, &second}) {
      client->ping();
      client->send_command(wire::Command::goodbye);
    }
    REQUIRE(poold.await_log("worker_gone", 2 * (round + 1)));
  }
  CHECK(seen == std::set<uid_t>{61100, 61101, 61102});
  CHECK(occurrences(poold.log(), "worker_start_failed") == 0);
  CHECK(poold.log().find("user per session") == std::string::npos);
}

TEST_CASE("workers have namespaces of their own") {
  if (!can_make_namespaces()) return report_skip("this process may not make namespaces");
  PooldProcess poold(kDevice, {"--rdma", "no"});
  RawClient client(poold.endpoint());
  const auto worker = static_cast<pid_t>(client.open().worker_pid);
  client.ping();
  CHECK(name_space(worker, "net") != name_space(::getpid(), "net"));
  for (const char* const kind : {"mnt", "ipc"}) {
    CHECK(eventually([&] {
      std::set<std::string> spaces{name_space(::getpid(), kind)};
      for (const pid_t one : poold.workers()) spaces.insert(name_space(one, kind));
      return poold.workers().size() == 3 && spaces.size() == 4;
    }));
  }
  std::ifstream file("/proc/" + std::to_string(worker) + "/mountinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(text.find("hidepid=invisible") != std::string::npos);
  for (const pid_t one : poold.workers())
    // Closed when the worker has finished starting.
    CHECK(eventually([&] { return !has_descriptor_below(one, "/proc"); }));
  CHECK(poold.log().find("missing=processes") == std::string::npos);
  CHECK(poold.log().find("missing=network") == std::string::npos);
}

TEST_CASE("two poolds do not share users for sessions") {
  if (::geteuid() != 0) return report_skip("only root's workers become other users");
  const PooldProcess poold(kDevice, {"--worker-users", "61110-61119", "--max-sessions", "2"});
  const Finished other =
      run_to_end({program_path("poold"), "--device", kDevice, "--listen", "tcp://127.0.0.1:0",
                  "--admin-socket", "none", "--worker-users", "61110-61119", "--max-sessions", "2"});
  INFO(other.output);
  CHECK(other.status == 1);
  CHECK(other.output.find("give each poold its own range of unused users") != std::string::npos);
}

TEST_CASE("poold refuses invalid --worker-users at start") {
  const auto [users, why] = GENERATE(
      table<std::string, std::string>({{"0", "is root"},
                                       {"0-100", "is not a valid range"},
                                       {"200-100", "is not a valid range"},
                                       {"100-4294967295", "is not a valid range"},
                                       {"61100-61110", "has 11 users, but up to 66 workers need one each"}}));
  const Finished poold = run_to_end({program_path("poold"), "--worker-users", users});
  INFO(poold.output);
  CHECK(poold.status == 2);
  CHECK(poold.output.find("--worker-users: ") != std::string::npos);
  CHECK(poold.output.find(why) != std::string::npos);
}

TEST_CASE("poold does not start where a worker could read its secrets") {
  const DeviceFolder device;
  const auto [option, name] =
      GENERATE(table<std::string, std::string>({{"--tls-key", "server.key"},
                                                {"--pool-token-file", "node.token"},
                                                {"--suspended-key", "suspended.key"},
                                                {"--suspended-folder", "suspended"}}));
  const std::string secret =
      option == "--suspended-folder" ? device.secret_folder(name) : device.secret(name);
  std::vector<std::string> words = ordinary_poold({"--device", device.library, option, secret});
  const LeaseMaker maker;
  if (option == "--pool-token-file") {
    const std::string key = device.folder.path() / "public.pem";  // a copy that ordinary users can read
    std::filesystem::copy_file(maker.public_key_file(), key);
    std::filesystem::permissions(key, std::filesystem::perms(0644));
    words.insert(words.end(), {"--pool-scheduler", "127.0.0.1:1", "--pool-name", "test", "--pool-insecure",
                               "--pool-public-key", key});
  }
  const Finished refused = run_to_end(words);
  INFO(refused.output);
  CHECK(refused.status == 1);
  CHECK(refused.output.find(option + ": workers") != std::string::npos);
  CHECK(refused.output.find(secret) != std::string::npos);
  words.push_back("--insecure");
  Process poold(words, {});
  CHECK(poold.await_output("secret_within_reach"));
  CHECK(poold.await_output(" listening "));
}

TEST_CASE("poold starts where Landlock keeps workers from its secrets") {
  if (worker::sandbox::landlock_version() < worker::sandbox::kLandlockFiles)
    return report_skip("this kernel has no Landlock");
  const DeviceFolder device, elsewhere;
  Process poold(ordinary_poold({"--device", device.library, "--tls-key", elsewhere.secret("server.key")}),
                {});
  CHECK(poold.await_output(" listening "));
  CHECK(poold.output().find("secret_within_reach") == std::string::npos);
  // Nor can another process of the same user read them from poold's memory or environment.
  CHECK(in_child([&](Checks& check) {
          if (::geteuid() == 0)
            check(::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
                  ::setresuid(kNobody, kNobody, kNobody) == 0);
          const std::string folder = "/proc/" + std::to_string(poold.pid());
          check(refused(::open((folder + "/mem").c_str(), O_RDONLY), EACCES));
          check(refused(::open((folder + "/environ").c_str(), O_RDONLY), EACCES));
          check(refused(::open((folder + "/fd").c_str(), O_RDONLY | O_DIRECTORY), EACCES));
        }) == 0);
}

TEST_CASE("root's poold does not start where all users may read its secrets, which workers find") {
  if (::geteuid() != 0) return report_skip("only root's workers become other users");
  const DeviceFolder device;
  const std::string secret = device.secret("server.key");
  const std::vector<std::string> words{
      program_path("poold"), "--device", device.library, "--listen", "tcp://127.0.0.1:0",
      "--admin-socket",      "none",     "--tls-key",    secret};
  REQUIRE(::chown(secret.c_str(), 0, 0) == 0);
  std::filesystem::permissions(secret, std::filesystem::perms(0644));
  const Finished refused = run_to_end(words);
  INFO(refused.output);
  CHECK(refused.status == 1);
  CHECK(refused.output.find("readable by all users") != std::string::npos);
  std::filesystem::permissions(secret, std::filesystem::perms(0600));
  Process poold(words, {});
  CHECK(poold.await_output(" listening "));
}

TEST_CASE("root's poold does not start where its secrets belong to the workers' user or group") {
  if (::geteuid() != 0) return report_skip("only root's workers become other users");
  const DeviceFolder device;
  const std::string secret = device.secret("server.key");
  const auto refuses = [&](const std::string& users, uid_t owner, gid_t group, mode_t mode) {
    REQUIRE(::chown(secret.c_str(), owner, group) == 0);
    REQUIRE(::chmod(secret.c_str(), mode) == 0);
    const Finished refused = run_to_end({program_path("poold"), "--device", device.library, "--listen",
                                         "tcp://127.0.0.1:0", "--admin-socket", "none", "--worker-users",
                                         users, "--tls-key", secret, "--metrics", "not an address"});
    INFO(refused.output);
    CHECK(refused.status == 1);
    const std::string why = "workers could read '" + secret + "': it belongs to their user or group";
    return refused.output.find(why) != std::string::npos;
  };
  CHECK(refuses("65534", kNobody, 0, 0600));
  CHECK(refuses("65534", kNobody, 0, 0200));  // its owner can change that
  CHECK(refuses("61100-61199", 61150, 0, 0600));
  CHECK(refuses("61100-61199", 0, 61150, 0640));
  CHECK_FALSE(refuses("61100-61199", 61200, 0, 0600));
  CHECK_FALSE(refuses("61100-61199", 0, 61150, 0600));
}

TEST_CASE("root's poold does not start where its suspended sessions belong to another user") {
  if (::geteuid() != 0) return report_skip("only root's workers become other users");
  const DeviceFolder device, elsewhere;
  const std::string folder = elsewhere.secret_folder("suspended");
  const auto refusal = [&](const std::string& users, uid_t owner) {
    REQUIRE(::chown(folder.c_str(), owner, 0) == 0);
    const Finished refused = run_to_end({program_path("poold"), "--device", device.library, "--listen",
                                         "tcp://127.0.0.1:0", "--admin-socket", "none", "--worker-users",
                                         users, "--suspended-folder", folder, "--metrics", "not an address"});
    CHECK(refused.status == 1);
    return refused.output;
  };
  // Workers of one session could open the sessions of all tenants, if they reached the folder.
  CHECK(refusal("61100-61199", 61150).find("belongs to") != std::string::npos);
  CHECK(refusal("61100-61199", 61300).find("--suspended-folder " + folder + ": belongs to another user") !=
        std::string::npos);
  CHECK(refusal("61100-61199", 0).find("suspended") == std::string::npos);
}

TEST_CASE("poold logs one warning for each confinement layer that is not effective") {
  const PooldProcess poold(kDevice);
  CHECK(poold.await_log("missing=\"user per session\""));
  CHECK(occurrences(poold.log(), "missing=\"user per session\"") == 1);
  CHECK((poold.log().find("missing=\"other user\"") != std::string::npos) == (::geteuid() != 0));
  CHECK((poold.log().find("missing=files") != std::string::npos) ==
        (worker::sandbox::landlock_version() < worker::sandbox::kLandlockFiles));
}

TEST_CASE("--check-host lists the effective layers and exits with 0 only if all are") {
  const auto check_host = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{program_path("poold"), "--check-host"};
    words.insert(words.end(), more.begin(), more.end());
    return run_to_end(words);
  };
  const Finished usual = check_host({});
  INFO(usual.output);
  CHECK(usual.status == 1);  // all workers share one user
  for (const char* const layer : {"other user", "user per session", "system calls", "files", "TCP",
                                  "signals and sockets", "processes", "IPC", "network", "control group"}) {
    CHECK(usual.output.find(std::string("\n") + layer + " ") != std::string::npos);
  }
  const Finished off = check_host({"--sandbox=off"});
  CHECK(off.status == 1);
  CHECK(off.output.find("not confined at all") != std::string::npos);
  CHECK(check_host({"--no-sandbox"}).output == off.output);
  const Finished logged = check_host({"--sandbox=log"});
  CHECK(logged.status == 1);
  CHECK(check_host({"--sandbox=perhaps"}).status == 2);
#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
  report_skip("with a sanitizer workers have no filter of system calls");
#else
  const Finished whole = check_host({"--worker-users", "61100-61199", "--rdma", "no", "--worker-threads",
                                     "0"});  // cgroups_test.cc tests the control group
  INFO(whole.output);
  CHECK(whole.status == (all_layers() ? 0 : 1));
  CHECK(logged.output.find("forbidden system calls are logged, not refused") != std::string::npos);
#endif
}
