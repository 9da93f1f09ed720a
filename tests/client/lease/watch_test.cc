// Tests the wait for a change of the lease file: with inotify, without it, and where folders cannot be
// watched. The limits are far longer than a test takes, unless a test is about the limit.
#include "client/lease/watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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

struct Inotify {
  const char* name;
  int (*start)(int);
};
constexpr Inotify kInotifies[] = {
    {"inotify", ::inotify_init1},
    {"no inotify", [](int) { return errno = EMFILE, -1; }},
    {"a folder that cannot be watched", [](int) { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }},
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
      kLong, inotify.start);
  const bool in_time = Clock::now() - start < kLong;
  changer.join();
  return {token_of(servers), in_time};
}

std::atomic<int> signals_taken{0};

}  // namespace

TEST_CASE("lease watch: returns at once if the condition holds already") {
  const WatchedLease lease;
  for (const Inotify& inotify : kInotifies) {
    INFO(inotify.name);
    const auto start = Clock::now();
    CHECK(token_of(await_named_servers(lease.name(), has_token("first"), kLong, inotify.start)) == "first");
    CHECK(token_of(await_named_servers(lease.name(), has_token("first"), 0ms, inotify.start)) == "first");
    CHECK(Clock::now() - start < kLong);
  }
}

TEST_CASE("lease watch: returns when a new version of the file is renamed into place") {
  for (const Inotify& inotify : kInotifies) {
    INFO(inotify.name);
    const WatchedLease lease;
    const Awaited awaited = await_second(lease, inotify, [&] {
      (void)lease.write("other");  // the condition does not hold of each version
      (void)lease.write("second");
    });
    CHECK(awaited.token == "second");
    CHECK(awaited.in_time);
  }
}

TEST_CASE("lease watch: misses no change between reading the file and waiting") {
  for (const Inotify& inotify : kInotifies) {
    INFO(inotify.name);
    const WatchedLease lease;
    const auto start = Clock::now();
    const auto servers = await_named_servers(
        lease.name(),
        [&](const Servers& now) {
          (void)lease.write("second");
          return now.front().token == "second";
        },
        kLong, inotify.start);
    CHECK(token_of(servers) == "second");
    CHECK(Clock::now() - start < kLong);
  }
}

TEST_CASE("lease watch: returns the servers of that time when the limit passes") {
  constexpr std::chrono::milliseconds kShort = 200ms;
  const WatchedLease lease;
  for (const Inotify& inotify : kInotifies) {
    INFO(inotify.name);
    const auto start = Clock::now();
    CHECK(token_of(await_named_servers(lease.name(), has_token("second"), kShort, inotify.start)) == "first");
    CHECK(Clock::now() - start >= kShort);
    CHECK(token_of(await_named_servers(lease.name(), has_token("second"), 0ms, inotify.start)) == "first");
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

TEST_CASE("lease watch: goes on after signals") {
  struct sigaction counts {
  }, before{};
  counts.sa_handler = [](int) { ++signals_taken; };
  REQUIRE(::sigaction(SIGUSR1, &counts, &before) == 0);
  const pthread_t waiting = ::pthread_self();
  for (const Inotify& inotify : kInotifies) {
    INFO(inotify.name);
    const WatchedLease lease;
    signals_taken = 0;
    const Awaited awaited = await_second(lease, inotify, [&] {
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
  for (const Inotify& inotify : kInotifies) {
    INFO(inotify.name);
    const auto start = Clock::now();
    for (const std::string& missing : {name + "/none/servers", name + "/servers"}) {
      CHECK_THAT(token_of(await_named_servers(missing, has_token("first"), kLong, inotify.start)),
                 ContainsSubstring("is pool-lease still running?"));
    }
    CHECK(Clock::now() - start < kLong);
  }
}

TEST_CASE("lease watch: reports the end of the lease") {
  for (const Inotify& inotify : kInotifies) {
    INFO(inotify.name);
    const WatchedLease ended;
    const Awaited awaited = await_second(ended, inotify, [&] { (void)write_lease_file(ended.file, {}); });
    CHECK_THAT(awaited.token, ContainsSubstring("the lease has ended"));
    CHECK(awaited.in_time);
    const WatchedLease removed;
    const Awaited gone = await_second(removed, inotify, [&] { remove_lease_file(removed.file); });
    CHECK_THAT(gone.token, ContainsSubstring("is pool-lease still running?"));
    CHECK(gone.in_time);
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
