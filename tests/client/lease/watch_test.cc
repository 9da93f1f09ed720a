// Tests the wait for a change of the lease file: with inotify, without it, where folders cannot be watched,
// and where inotify reports nothing. The limits are far longer than a test takes, unless a test is about the
// limit.
#include "client/lease/watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/processes.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using gpupool::testing::TemporaryFolder;

namespace {

using Servers = std::vector<LeasedServer>;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLong = 60s;

// Accepts the folder and reports nothing, on any machine: nothing ever makes this descriptor readable.
constexpr Inotify kSilent{[](int) { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); },
                          [](int, const char*, uint32_t) { return 1; }};
struct Case {
  const char* name;
  Inotify inotify;
};
constexpr Case kCases[] = {
    // Only an event ends a wait in time.
    {"inotify", {::inotify_init1, ::inotify_add_watch, kLong}},
    {"no inotify", {[](int) { return errno = EMFILE, -1; }, ::inotify_add_watch}},
    {"a folder that cannot be watched",
     {[](int) { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }, ::inotify_add_watch}},
    {"an inotify that reports nothing", kSilent},
};

// A lease file with the token "first".
struct WatchedLease {
  WatchedLease() : file(folder.path() / "servers") { REQUIRE(write("first")); }
  bool write(const std::string& token) const {
    return write_lease_file(file, {{transport::Endpoint{"tcp", "192.0.2.1", 7}, token}}).ok();
  }
  std::string name() const { return "lease:" + file; }

  TemporaryFolder folder;
  std::string file;
};

LeaseCondition has_token(const std::string& token) {
  return [token](const Servers& servers) { return servers.front().token == token; };
}

// Returns the first server's token, or the error message.
std::string token_of(const Result<Servers>& servers) {
  return servers ? servers->front().token : servers.error().message;
}

struct Awaited {
  std::string token;
  bool in_time = false;  // before the limit
};

// Waits for the token "second". Another thread calls `change` when the file has been read once.
Awaited await_second(const WatchedLease& lease, const Inotify& inotify, const std::function<void()>& change) {
  std::promise<void> read;
  std::thread changer([&change, was_read = read.get_future()] {
    if (was_read.wait_for(kLong) == std::future_status::ready) change();
  });
  const auto start = Clock::now();
  bool first = true;
  const auto servers = await_named_servers(
      lease.name(),
      [&](const Servers& now) {
        if (std::exchange(first, false)) read.set_value();
        return has_token("second")(now);
      },
      kLong, inotify);
  const bool in_time = Clock::now() - start < kLong;
  changer.join();
  return {token_of(servers), in_time};
}

std::atomic<int> signals_taken{0};

}  // namespace

TEST_CASE("lease watch: returns at once if the condition holds already") {
  const WatchedLease lease;
  for (const Case& one : kCases) {
    INFO(one.name);
    const auto start = Clock::now();
    CHECK(token_of(await_named_servers(lease.name(), has_token("first"), kLong, one.inotify)) == "first");
    CHECK(token_of(await_named_servers(lease.name(), has_token("first"), 0ms, one.inotify)) == "first");
    CHECK(Clock::now() - start < kLong);
  }
}

TEST_CASE("lease watch: returns when a new version of the file is renamed into place") {
  for (const Case& one : kCases) {
    INFO(one.name);
    const WatchedLease lease;
    const Awaited awaited = await_second(lease, one.inotify, [&] {
      (void)lease.write("other");  // the condition does not hold of each version
      (void)lease.write("second");
    });
    CHECK(awaited.token == "second");
    CHECK(awaited.in_time);
  }
}

TEST_CASE("lease watch: misses no change between reading the file and waiting") {
  for (const Case& one : kCases) {
    INFO(one.name);
    const WatchedLease lease;
    const auto start = Clock::now();
    const auto servers = await_named_servers(
        lease.name(),
        [&](const Servers& now) {
          (void)lease.write("second");
          return now.front().token == "second";
        },
        kLong, one.inotify);
    CHECK(token_of(servers) == "second");
    CHECK(Clock::now() - start < kLong);
  }
}

TEST_CASE("lease watch: returns the servers of that time when the limit passes") {
  constexpr std::chrono::milliseconds kShort = 200ms;
  const WatchedLease lease;
  for (const Case& one : kCases) {
    INFO(one.name);
    const auto start = Clock::now();
    CHECK(token_of(await_named_servers(lease.name(), has_token("second"), kShort, one.inotify)) == "first");
    CHECK(Clock::now() - start >= kShort);
    CHECK(token_of(await_named_servers(lease.name(), has_token("second"), 0ms, one.inotify)) == "first");
  }
}

TEST_CASE("lease watch: with inotify reads the file less often") {
  const int probe = ::inotify_init1(IN_CLOEXEC);
  if (probe < 0) return testing::report_skip("inotify is not available");
  ::close(probe);
  const WatchedLease lease;
  int readings = 0;
  (void)await_named_servers(
      lease.name(),
      [&](const Servers&) {
        ++readings;
        return false;
      },
      500ms);
  CHECK(readings <= 10);  // without inotify 26
}

TEST_CASE("lease watch: reads the file every 200 ms if inotify reports nothing") {
  const WatchedLease lease;
  std::vector<Clock::time_point> readings;
  (void)await_named_servers(
      lease.name(),
      [&](const Servers&) {
        readings.push_back(Clock::now());
        return readings.size() == 6;
      },
      kLong, kSilent);
  REQUIRE(readings.size() == 6);
  Clock::duration shortest = kLong;  // a busy machine lengthens some pauses
  for (size_t i = 1; i < readings.size(); ++i) shortest = std::min(shortest, readings[i] - readings[i - 1]);
  CHECK(shortest < 400ms);
  CHECK(shortest > 100ms);  // not as often as without inotify
}

TEST_CASE("lease watch: goes on after signals") {
  struct sigaction counts {
  }, before{};
  counts.sa_handler = [](int) { ++signals_taken; };
  REQUIRE(::sigaction(SIGUSR1, &counts, &before) == 0);
  const pthread_t waiting = ::pthread_self();
  for (const Case& one : kCases) {
    INFO(one.name);
    const WatchedLease lease;
    signals_taken = 0;
    const Awaited awaited = await_second(lease, one.inotify, [&] {
      const auto stop = Clock::now() + kLong;
      for (int sent = 1; sent <= 3; ++sent) {
        (void)::pthread_kill(waiting, SIGUSR1);
        while (signals_taken < sent && Clock::now() < stop) std::this_thread::yield();
      }
      (void)lease.write("second");
    });
    CHECK(signals_taken == 3);
    CHECK(awaited.token == "second");
    CHECK(awaited.in_time);
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("lease watch: reports at once that there is no file") {
  const TemporaryFolder folder;
  const std::string name = "lease:" + folder.path().string();
  for (const Case& one : kCases) {
    INFO(one.name);
    const auto start = Clock::now();
    for (const std::string& missing : {name + "/none/servers", name + "/servers"}) {
      CHECK_THAT(token_of(await_named_servers(missing, has_token("first"), kLong, one.inotify)),
                 ContainsSubstring("is pool-lease still running?"));
    }
    CHECK(Clock::now() - start < kLong);
  }
}

TEST_CASE("lease watch: reports the end of the lease") {
  for (const Case& one : kCases) {
    INFO(one.name);
    const WatchedLease ended;
    const Awaited awaited = await_second(ended, one.inotify, [&] { (void)write_lease_file(ended.file, {}); });
    CHECK_THAT(awaited.token, ContainsSubstring("the lease has ended"));
    CHECK(awaited.in_time);
    const WatchedLease lease;
    const std::string folder = lease.folder.path(), away = folder + ".away";
    const auto expect_gone = [&](const std::function<void()>& change) {
      const Awaited gone = await_second(lease, one.inotify, change);
      CHECK_THAT(gone.token, ContainsSubstring("is pool-lease still running?"));
      CHECK(gone.in_time);
    };
    expect_gone([&] { std::filesystem::rename(folder, away); });
    std::filesystem::rename(away, folder);
    expect_gone([&] { std::filesystem::remove(lease.file); });
    REQUIRE(lease.write("first"));
    expect_gone([&] { remove_lease_file(lease.file); });
  }
}

TEST_CASE("lease watch: does not wait for a list of addresses, which never changes") {
  const auto never = [](const Servers&) { return false; };
  const auto start = Clock::now();
  const auto servers = await_named_servers("tcp://192.0.2.1:7,tcp://192.0.2.2:7", never, kLong);
  REQUIRE(servers);
  CHECK(servers->size() == 2);
  CHECK_FALSE(await_named_servers("http://192.0.2.1:7", never, kLong));
  CHECK(Clock::now() - start < kLong);
}
