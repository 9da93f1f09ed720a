// Tests that a worker that crashes, cannot start or is killed affects only its own client.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/sanitizers.h"
#include "server/handover/handover.h"
#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("a crash of a worker ends only its own session") {
  // Sanitizers' own handlers would turn the signal into an exit status.
  PooldProcess poold(
      kDevice, {}, {{"ASAN_OPTIONS", "handle_segv=0"}, {"TSAN_OPTIONS", "handle_segv=0:atexit_sleep_ms=0"}});
  RawClient victim(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.program = "victim";
  const pid_t worker = static_cast<pid_t>(victim.open(hello).worker_pid);
  RawClient other(poold.endpoint());
  other.open();
  REQUIRE(::kill(worker, SIGSEGV) == 0);
  CHECK(victim.await_end());
  CHECK(poold.await_log("session_ended"));
  const std::string log = poold.log();
  const std::string line = log.substr(log.find("session_ended"));
  CHECK(line.find("session=1") != std::string::npos);
  CHECK(line.find("program=victim") != std::string::npos);
  CHECK(line.find("killed by signal 11") != std::string::npos);
  CHECK(log.find(" error poold") != std::string::npos);
  other.ping();
  RawClient next(poold.endpoint());
  next.open();
  next.ping();
}

TEST_CASE("an idle worker that dies is replaced") {
  PooldProcess poold(kDevice);
  CHECK(eventually([&] { return poold.workers().size() == 2; }));
  const auto before = poold.workers();
  for (const pid_t worker : before) REQUIRE(::kill(worker, SIGKILL) == 0);
  for (const pid_t worker : before) CHECK(await_gone(worker));
  CHECK(eventually([&] {
    const auto now = poold.workers();
    return now.size() == 2 &&
           std::find_first_of(now.begin(), now.end(), before.begin(), before.end()) == now.end();
  }));
  RawClient client(poold.endpoint());
  client.open();
  client.ping();
}

TEST_CASE("a client is served although the idle worker has just died") {
  PooldProcess poold(kDevice, {"--idle-workers", "1"});
  for (int i = 0; i < 5; ++i) {
    REQUIRE(eventually([&] { return poold.workers().size() == 1; }));
    const pid_t worker = poold.workers()[0];
    RawClient before(poold.endpoint());  // connected, so that its hello follows at once
    REQUIRE(poold.await_log("worker_start_failed", static_cast<size_t>(i)));
    REQUIRE(::kill(worker, SIGKILL) == 0);
    REQUIRE(poold.await_log("worker_start_failed", static_cast<size_t>(i) + 1));
    before.open();
    before.ping();
    before.send_command(wire::Command::goodbye);
    CHECK(poold.await_log("session_ended", static_cast<size_t>(i) + 1));
  }
}

TEST_CASE("poold refuses clients with the reason and backs off while no worker can start and then recovers") {
  TemporaryFolder folder;
  const std::string flag = folder.path() / "broken";
  // Confined workers could not see the file.
  PooldProcess poold(kDevice, {"--idle-workers", "1", "--no-sandbox"}, {{"FAKE_DEVICE", "flag:" + flag}});
  CHECK(eventually([&] { return poold.workers().size() == 1; }));
  folder.write("broken", "");
  for (const pid_t worker : poold.workers()) REQUIRE(::kill(worker, SIGKILL) == 0);
  CHECK(poold.await_log("worker_start_failed", 3));
  RawClient refused(poold.endpoint());
  refused.send_hello();
  const hello::HelloReply reply = refused.receive_reply();
  CHECK(reply.status == hello::Status::no_device);
  CHECK(reply.reason.find("cuInit failed") != std::string::npos);
  const size_t failures = occurrences(poold.log(), "worker_start_failed");
  CHECK(poold.await_log("retry_ms=800"));
  CHECK(occurrences(poold.log(), "worker_start_failed") <= failures + 3);
  std::filesystem::remove(flag);
  CHECK(eventually([&] {
    RawClient client(poold.endpoint());
    client.send_hello();
    return client.receive_reply().status == hello::Status::ok;
  }));
  CHECK(poold.stop() == 0);
}

TEST_CASE("NVIDIA's driver on a host without a GPU ends poold with advice") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(kDevice, folder.path() / "libcuda.so.1");
  const char* const how = GENERATE("init", "none");
  const Finished finished =
      run_to_end({program_path("poold"), "--listen", "tcp://127.0.0.1:0", "--device", "nvidia"},
                 {{"LD_LIBRARY_PATH", folder.path()}, {"FAKE_DEVICE", how}});
  INFO(finished.output);
  CHECK(finished.status == 1);
  CHECK(finished.output.find(
            "check that nvidia-smi shows a GPU on this host, or try poold with --device softgpu") !=
        std::string::npos);
}

TEST_CASE("softgpu without a device ends poold and names the variable") {
  const Finished none = run_to_end({program_path("poold"), "--listen", "tcp://127.0.0.1:0", "--admin-socket",
                                    "none", "--device", "softgpu"},
                                   {{"SOFTGPU_DEVICES", "0"}});
  INFO(none.output);
  CHECK(none.status == 1);
  CHECK(none.output.find("softgpu: no device: SOFTGPU_DEVICES is 0") != std::string::npos);
}

TEST_CASE("a worker inherits no descriptors but its own") {
  const int stray = ::open("/dev/null", O_RDONLY);  // without close-on-exec, so poold inherits it
  REQUIRE(stray >= 0);
  PooldProcess poold(kDevice);
  ::close(stray);
  CHECK(eventually([&] { return poold.workers().size() == 2; }));
  RawClient(poold.endpoint()).open();  // both have finished starting once one has been used
  CHECK(poold.await_log("session_ended"));
  // Descriptors 0 to 2, and those from 3 on that server/handover/handover.h numbers.
  for (const pid_t worker : poold.workers()) {
    if (!can_count_descriptors(worker))
      return report_skip("before Linux 6.2 only root can count a worker's descriptors");
    CHECK(eventually([&] { return descriptors_of(worker) == server::kCacheDescriptor + 1; }));
  }
}

TEST_CASE("only the worker that violates the control protocol is ended") {
  const std::string how = GENERATE("garbage", "kind", "ready", "damaged", "deposit", "dump", "peers",
                                   "migration-unknown", "migration-unasked", "migration-state",
                                   "migration-long", "migration-unprintable", "migration-twice");
  CAPTURE(how);
  PooldProcess poold(kDevice, {"--peers", "127.0.0.0/8"}, {{"FAKE_DEVICE", "hostile:" + how}});
  RawClient hostile(poold.endpoint());
  const pid_t worker = static_cast<pid_t>(hostile.open().worker_pid);
  RawClient other(poold.endpoint());
  other.open();
  const size_t descriptors = poold.descriptors();
  REQUIRE(::kill(worker, SIGUSR1) == 0);
  CHECK(hostile.await_end());
  CHECK(poold.await_log("worker_ended_by_poold"));
  CHECK(await_gone(worker));
  other.ping();
  CHECK(eventually([&] { return poold.descriptors() <= descriptors; }));
}

namespace {

// A session of the tenant whose worker uses the driver's cache once and logs a line that begins with
// "fake_cache ".
struct CacheUser {
  CacheUser(PooldProcess& poold, const std::string& tenant) : client(poold.endpoint()) {
    hello::Hello hello = test_hello();
    hello.tenant = tenant;
    const pid_t worker = static_cast<pid_t>(client.open(hello).worker_pid);
    const size_t before = occurrences(poold.log(), "fake_cache ");
    REQUIRE(::kill(worker, SIGUSR1) == 0);
    REQUIRE(poold.await_log("fake_cache ", before + 1));
    const std::string log = poold.log();
    line = log.substr(log.rfind("fake_cache "));
    line = line.substr(0, line.find('.'));
  }
  RawClient client;
  std::string line;
};

// The folder that contains all tenants' folders, from a worker's command line; waits until the worker has
// called exec.
std::string cache_root(const PooldProcess& poold) {
  std::string root;
  eventually([&] {
    for (const pid_t worker : poold.workers()) {
      std::ifstream file("/proc/" + std::to_string(worker) + "/cmdline");
      const std::string words{std::istreambuf_iterator<char>(file), {}};
      const size_t at = words.find("/dev/shm/gpupool-cache-");
      if (at != std::string::npos) root = words.c_str() + at;
    }
    return !root.empty();
  });
  return root;
}

}  // namespace

TEST_CASE("the driver cache has one folder per tenant which other tenants' workers cannot access") {
  const TemporaryFolder folder;
  PooldProcess poold(
      kDevice, {"--config", folder.write("poold.toml", "[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'b'\n")},
      {{"FAKE_DEVICE", "cache"}, {"CUDA_CACHE_PATH", folder.path()}});
  CHECK(CacheUser(poold, "a").line == "fake_cache bytes=67108864 before=0 made=1 wrote=1 others=0");
  CHECK(CacheUser(poold, "b").line == "fake_cache bytes=67108864 before=0 made=1 wrote=1 others=0");
  CHECK(CacheUser(poold, "a").line == "fake_cache bytes=67108864 before=1 made=1 wrote=1 others=0");
  CHECK(poold.stop() == 0);
}

TEST_CASE("the driver gets no cache folder without a code cache") {
  PooldProcess poold(kDevice, {"--code-cache-mib", "0"}, {{"FAKE_DEVICE", "cache"}});
  CHECK(CacheUser(poold, "").line == "fake_cache bytes=none before=-1 made=0 wrote=0 others=0");
}

TEST_CASE("the driver cache is removed at poold's exit or by the next poold after a crash") {
  std::string root;
  {
    PooldProcess poold(kDevice, {}, {{"FAKE_DEVICE", "cache"}});
    CacheUser(poold, "");
    root = cache_root(poold);
    CHECK(std::filesystem::exists(root));
    CHECK(poold.stop() == 0);
    CHECK_FALSE(std::filesystem::exists(root));
  }
  {
    PooldProcess poold(kDevice, {}, {{"FAKE_DEVICE", "cache"}});
    CacheUser(poold, "");
    root = cache_root(poold);
    REQUIRE(::kill(poold.pid(), SIGKILL) == 0);
    CHECK(await_gone(poold.pid()));
    CHECK(std::filesystem::exists(root));
  }
  PooldProcess next(kDevice);
  CHECK(eventually([&] { return !std::filesystem::exists(root); }));
  CHECK(std::filesystem::exists(cache_root(next)));
}

TEST_CASE("idle workers are confined") {
  PooldProcess poold(kDevice, kTellsOfWorkers);
  REQUIRE(poold.await_log("worker_ready", kIdleWorkers));
  for (const pid_t worker : poold.workers()) {
    std::ifstream file("/proc/" + std::to_string(worker) + "/status");
    const std::string status{std::istreambuf_iterator<char>(file), {}};
    INFO(status);
    CHECK(status.find("NoNewPrivs:\t1") != std::string::npos);
    CHECK(status.find("CapEff:\t0000000000000000") != std::string::npos);
    if (::geteuid() == 0)
      CHECK(status.find("Uid:\t65534\t65534\t65534\t65534") != std::string::npos);
    else
      report_skip("only root's workers become another user");
    if (kSanitized)
      report_skip("with a sanitizer workers have no filter of system calls");
    else
      CHECK(status.find("Seccomp:\t2") != std::string::npos);
  }
}

TEST_CASE("poold refuses an unknown user for workers at start") {
  if (::geteuid() != 0) return report_skip("only root's workers become another user");
  const Finished poold = run_to_end({program_path("poold"), "--device", kDevice, "--listen",
                                     "tcp://127.0.0.1:0", "--worker-user", "no-such-user"},
                                    {});
  CHECK(poold.status == 1);
  CHECK(poold.output.find("no user named 'no-such-user'") != std::string::npos);
}
