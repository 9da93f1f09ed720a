// Sessions that move between two servers while their programs run: no result changes, and a session that
// cannot move goes on where it is.
#include <signal.h>

#include "tests/e2e/expect_success.h"
#include "tests/e2e/pool.h"
#include "tests/e2e/pool_admin.h"
#include "tests/support/catch.h"
#include "tests/support/cutting_proxy.h"
#include "tests/support/end_file.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

const std::vector<std::string> kMigrates{"--resume-timeout", "60", "--peers", "127.0.0.0/8"};

constexpr unsigned kShare = kSanitized ? 5 : 1;  // of the rounds
constexpr const char* kUntilEnd = "1000000";     // rounds

// Two servers, and a program that starts on the first one. Its commands do not use shared memory, whose
// pinned memory cannot migrate.
struct Move {
  explicit Move(std::vector<std::string> program, const std::vector<std::string>& first = kMigrates,
                const std::vector<std::string>& second = kMigrates, Environment environment = {},
                const Environment& servers = {})
      : pools{Pool(servers, first), Pool(servers, second)},
        app(with_app(std::move(program)), through(environment)) {
    REQUIRE(app.await_output("working"));
  }
  static std::vector<std::string> with_app(std::vector<std::string> words) {
    words.insert(words.begin(), driver_app());
    return words;
  }
  Environment through(Environment more) {
    more.insert({"GPUPOOL_SHM", "0"});
    return pools[0].through(more);
  }
  std::string address(size_t server) { return pools[server].poold().endpoint().text(); }
  // Asks the server that has the session to move it to the other one. Returns the reply.
  Json ask(const std::string& to = "") {
    const Json all = sessions_of(pools[at]);
    REQUIRE(all.size() == 1);
    const auto asked = pool_admin(pools[at], {"migrate", std::to_string(all[0]["number"].get<uint64_t>()),
                                              "--to", to.empty() ? address(1 - at) : to, "--timeout", "60"});
    return json_in(asked);
  }
  // Moves the session, which is then on the other server alone.
  void move() {
    const Json reply = ask();
    INFO(reply.dump());
    REQUIRE(reply["migrated"] == true);
    CHECK(pools[at].poold().await_log("session_ended", ++left[at]));
    CHECK(sessions_of(pools[at]).empty());
    at = 1 - at;
    CHECK(sessions_of(pools[at]).size() == 1);
  }
  void expect_success(const std::string& last_words) { testing::expect_success(app, last_words); }

  std::array<Pool, 2> pools;
  Process app;
  size_t at = 0;  // index of the server that has the session
  std::array<size_t, 2> left{};
};

}  // namespace

// The scenario `counting`, until expect_right_count().
struct CountingMove : EndFile, Move {
  explicit CountingMove(unsigned bytes = 40'000, const std::vector<std::string>& first = kMigrates,
                        const std::vector<std::string>& second = kMigrates, Environment environment = {})
      : Move({"counting", kUntilEnd, std::to_string(bytes), end}, first, second, std::move(environment)) {}
  void expect_right_count() {
    end_program();
    expect_success("counted to");
  }
};

TEST_CASE("a program counts right while its session moves") {
  CountingMove move;
  for (unsigned times = 0; times < 8 / kShare + 1; ++times) move.move();
  move.expect_right_count();
}

TEST_CASE("large copies go on after a move") {
  CountingMove move(4 << 20, kMigrates, kMigrates, {{"GPUPOOL_BULK_CONNECTIONS", "2"}});
  for (unsigned times = 0; times < 5 / kShare + 1; ++times) move.move();
  move.expect_right_count();
}

TEST_CASE("objects of every kind are the same after a move") {
  const EndFile file;
  Move move({"all_kinds", kUntilEnd, "5", file.end});
  for (unsigned times = 0; times < 6 / kShare + 1; ++times) move.move();
  file.end_program();
  move.expect_success("all kinds are unchanged");
}

// The scenario `changing` between two servers, until this object ends it.
struct ChangingMove : EndFile, Move {
  explicit ChangingMove(unsigned mebibytes, const Environment& servers = {})
      : Move({"changing", end, std::to_string(mebibytes)}, kMigrates, kMigrates, {}, servers) {}
  void expect_nothing_lost() {
    end_program();
    expect_success("nothing is lost");
  }
  // The values of this key in the lines that end a migration's rounds at the source.
  std::vector<uint64_t> of_sent(const std::string& key) {
    std::vector<uint64_t> values;
    for (Pool& pool : pools) {
      for (const std::string& line : lines_with(pool.poold().log(), "session_sent")) {
        const size_t at = line.find(" " + key + "=");
        REQUIRE(at != std::string::npos);
        values.push_back(std::stoull(line.substr(at + key.size() + 2)));
      }
    }
    return values;
  }
};

TEST_CASE("arrays, textures and surfaces are the same after a move") {
  const EndFile file;
  Move move({"arrays_until", file.end});
  for (unsigned times = 0; times < 5 / kShare + 1; ++times) move.move();
  file.end_program();
  move.expect_success("nothing is lost");
}

TEST_CASE("a program that changes everything all the time loses nothing while its session moves") {
  ChangingMove move(16);
  for (unsigned times = 0; times < 8 / kShare + 1; ++times) move.move();
  move.expect_nothing_lost();
}

// Hashes of what was sent are computed by the CPU, those of what is there by the CPU or by a kernel. If they
// differed, everything would be sent twice.
TEST_CASE("memory that does not change travels once, while the program runs") {
  for (const char* const staging : {"", "always"}) {
    INFO("GPUPOOL_STAGING: " << staging);
    ChangingMove move(96 / kShare, {{"GPUPOOL_STAGING", staging}});
    move.move();
    move.expect_nothing_lost();
    const auto bytes = move.of_sent("bytes"), last = move.of_sent("last_bytes");
    REQUIRE(last.size() == 1);
    CHECK(bytes[0] > (96 / kShare << 20));
    CHECK(bytes[0] < 2 * (96 / kShare << 20) + (64 << 20));
    CHECK(last[0] < (48 << 20));  // what changes meanwhile, up to 33 MiB on a busy machine
  }
}

TEST_CASE("pool-admin shows a session that is moving, and what it has sent") {
  ChangingMove move(64 / kShare);
  REQUIRE(pool_admin(move.pools[0], {"quota", "set", "default", "bandwidth-to-host=40MB/s"}).status == 0);
  Process admin(admin_words(move.pools[0].poold(), {"migrate", "1", "--to", move.address(1)}), {});
  Json seen;
  CHECK(eventually([&] {
    seen = sessions_of(move.pools[0]);
    return !seen.empty() && seen[0]["state"] == "moving" && seen[0]["moved_bytes"] > 0;
  }));
  INFO(seen.dump());
  CHECK(seen[0]["moving_to"] == move.address(1));
  CHECK(admin.wait(kLongPatience) == 0);
  const Json after = sessions_of(move.pools[1]);
  REQUIRE(after.size() == 1);
  CHECK(after[0]["state"] == "running");
  CHECK(after[0]["moved_bytes"] == 0);
  move.expect_nothing_lost();
}

TEST_CASE("the session of a program that calls nothing moves") {
  Move move({"all_kinds", "2", "6000"});
  move.move();
  move.expect_success("all kinds are unchanged");
}

TEST_CASE("a session moves to another worker of the same server") {
  CountingMove move;
  const Json before = sessions_of(move.pools[0]);
  const Json reply = move.ask(".");
  INFO(reply.dump());
  REQUIRE(reply["migrated"] == true);
  CHECK(move.pools[0].poold().await_log("session_ended"));
  const Json after = sessions_of(move.pools[0]);
  REQUIRE(after.size() == 1);
  CHECK(after[0]["worker_pid"] != before[0]["worker_pid"]);
  CHECK(after[0]["state"] == "running");
  CHECK(sessions_of(move.pools[1]).empty());
  move.expect_right_count();
}

TEST_CASE("memory of a session is free again on the server that it has left") {
  CountingMove move;
  const uint64_t used = sessions_of(move.pools[0])[0]["gpus"][0]["memory_used_bytes"].get<uint64_t>();
  move.move();
  const auto now = [&](size_t server) { return free_bytes(move.pools[server]); };
  CHECK(eventually([&] { return now(0) > now(1); }));
  CHECK(sessions_of(move.pools[1])[0]["gpus"][0]["memory_used_bytes"].get<uint64_t>() == used);
  move.expect_right_count();
}

TEST_CASE("a session that cannot move goes on, and pool-admin says why") {
  struct Case {
    const char* reason;
    std::vector<std::string> first, second;
  };
  const std::vector<std::string> no_peers{"--resume-timeout", "60", "--peers", "none"},
      no_resume{"--resume-timeout", "0", "--peers", "127.0.0.0/8"};
  const Case cases[] = {
      {"cannot be reached from this one", no_peers, kMigrates},
      {"cannot be resumed", kMigrates, no_resume},
      {"can migrate", no_resume, kMigrates},
  };
  for (const Case& one : cases) {
    CountingMove move(40'000, one.first, one.second);
    const Json reply = move.ask();
    INFO(reply.dump() << ", expected: " << one.reason);
    CHECK(reply["migrated"] == false);
    CHECK(reply["reason"].get<std::string>().find(one.reason) != std::string::npos);
    CHECK(eventually([&] { return sessions_of(move.pools[1]).empty(); }));
    move.expect_right_count();
  }
}

TEST_CASE("a session does not move to a server whose GPU differs, or that is not there") {
  Pool other({{"SOFTGPU_COMPUTE_CAPABILITY", "8.0"}}, kMigrates);
  CountingMove move;
  for (const auto& [to, reason] :
       {std::pair{other.poold().endpoint().text(), "attribute"},
        {std::string("tcp://127.0.0.1:1"), "tcp://127.0.0.1:1"},
        {std::string("tls://127.0.0.1:1"), "an unencrypted session moves to tcp:// addresses only"},
        {std::string("rdma://127.0.0.1:1"), "tcp:// and tls:// addresses"}}) {
    const Json reply = move.ask(to);
    INFO(reply.dump());
    CHECK(reply["migrated"] == false);
    CHECK(reply["reason"].get<std::string>().find(reason) != std::string::npos);
  }
  move.expect_right_count();
}

TEST_CASE("pinned memory that the server maps does not move") {
  CountingMove move(40'000, kMigrates, kMigrates, {{"GPUPOOL_SHM", "1"}, {"GPUPOOL_TRANSPORT", "auto"}});
  const Json reply = move.ask();
  INFO(reply.dump());
  CHECK(reply["migrated"] == false);
  CHECK(reply["reason"].get<std::string>().find("pinned memory that the server maps") != std::string::npos);
  move.expect_right_count();
}

// The target dies at any time of the migration: the session stays whole on its source.
TEST_CASE("a target that dies costs nothing") {
  for (const unsigned milliseconds : {1u, 20u, 60u, 120u, 240u, 480u}) {
    ChangingMove move(64 / kShare);
    Process admin(admin_words(move.pools[0].poold(), {"migrate", "1", "--to", move.address(1)}), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    const Json there = sessions_of(move.pools[1]);
    if (!there.empty()) ::kill(there[0]["worker_pid"].get<pid_t>(), SIGKILL);
    const bool migrated = admin.wait(kLongPatience) == 0;
    INFO("killed " << there.size() << " worker(s) after " << milliseconds << " ms; " << admin.output());
    if (!migrated) move.expect_nothing_lost();
    ::kill(move.app.pid(), SIGKILL);
  }
}

TEST_CASE("a session moves although its connection is cut") {
  Pool first({}, kMigrates), second({}, kMigrates);
  CuttingProxy proxy(first.poold().endpoint(), 20'000, 1);
  const EndFile file;
  Process app({driver_app(), "counting", kUntilEnd, "4000", file.end},
              first.through({{"GPUPOOL", proxy.endpoint().text()}, {"GPUPOOL_SHM", "0"}}));
  REQUIRE(app.await_output("working"));
  const auto asked = pool_admin(first, {"migrate", "1", "--to", second.poold().endpoint().text()});
  INFO(asked.output);
  CHECK(parse_json(asked.output)["migrated"] == true);
  file.end_program();
  expect_success(app, "counted to");
}
