// Sessions that are suspended to files and resumed, on the same server or another one, while their programs
// run: no result changes.
#include "tests/e2e/suspended_program.h"
#include "tests/support/certificates.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("a program that changes everything loses nothing while its session is suspended and resumed") {
  const std::vector<std::vector<std::string>> ways{
      {"--to", "memory"}, {"--to", "disk"}, {"--to", "disk", "--encrypt"}, {"--to", "memory", "--encrypt"}};
  Changing changing(16);
  for (unsigned times = 0; times < 8 / kShare; ++times) {
    changing.expect_suspended(ways[times % ways.size()]);
    changing.expect_resumed();
    CHECK(changing.store.count() == 0);
  }
  changing.expect_nothing_lost();
}

TEST_CASE("arrays, textures and surfaces are the same after a suspension") {
  Changing arrays("arrays_until", {});
  for (const char* const place : {"memory", "disk"}) {
    arrays.expect_suspended({"--to", place});
    arrays.expect_resumed();
  }
  arrays.expect_nothing_lost();
}

TEST_CASE("sessions over shared memory are suspended as well") {
  Changing changing(4, {}, {{"GPUPOOL_SHM", "1"}, {"GPUPOOL_TRANSPORT", "auto"}});
  for (int times = 0; times < 2; ++times) {
    changing.expect_suspended();
    changing.expect_resumed();
  }
  changing.expect_nothing_lost();
}

TEST_CASE("encrypted sessions are suspended as well, and come back encrypted") {
  const Authority authority("authority");
  const auto files = authority.sign("server", "IP:127.0.0.1");
  Changing changing(
      4, {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate, "--tls-key", files.key},
      {{"GPUPOOL_TLS_CA", authority.certificate()}});
  for (int times = 0; times < 2; ++times) {
    changing.expect_suspended();
    changing.expect_resumed();
    CHECK(sessions_of(*changing.pool)[0]["transport"] == "tls");
  }
  changing.expect_nothing_lost();
}

TEST_CASE("bulk connections are opened again when the session is resumed") {
  Changing changing(16, {}, {{"GPUPOOL_BULK_CONNECTIONS", "2"}});
  for (int times = 0; times < 2; ++times) {
    changing.expect_suspended();
    changing.expect_resumed();
  }
  changing.expect_nothing_lost();
}

TEST_CASE("a suspended session has neither worker nor GPU memory, and is seen everywhere") {
  const TemporaryFolder folder;
  const std::string audit = folder.path() / "audit";
  Changing changing(48, {"--metrics", "127.0.0.1:0", "--audit-file", audit, "--idle-workers", "1"});
  const uint64_t free_before = free_bytes(*changing.pool);
  changing.expect_suspended({"--to", "disk"});
  CHECK(eventually([&] { return free_bytes(*changing.pool) >= free_before + (48u << 20); }));
  CHECK(eventually([&] { return changing.pool->poold().workers().size() == 1; }));
  Json seen;
  const bool alone = eventually([&] {
    seen = sessions_of(*changing.pool);
    return seen.size() == 1;  // the one that asked for the free memory has ended
  });
  INFO(seen.dump());
  REQUIRE(alone);
  CHECK(seen[0]["state"] == "suspended");
  CHECK(seen[0]["number"] == std::stoull(changing.number));
  CHECK(seen[0]["suspended_to"] == changing.path);
  CHECK(seen[0]["suspended_bytes"] == changing.bytes);
  CHECK(seen[0]["suspended_ms"] > 0);
  CHECK(changing.bytes > (48u << 20));
  CHECK(std::filesystem::file_size(changing.path) == changing.bytes);
  const auto mode = std::filesystem::status(changing.path).permissions();
  CHECK((mode & (std::filesystem::perms::group_all | std::filesystem::perms::others_all)) ==
        std::filesystem::perms::none);
  CHECK(changing.app.await_output("is suspended; CUDA calls wait until it is resumed",
                                  std::chrono::seconds(5)));
  const auto metrics = [&] { return http_get(metrics_port(changing.pool->poold().log()), "/metrics"); };
  CHECK(metrics().find("\ngpupool_suspended_sessions 1\n") != std::string::npos);
  CHECK(metrics().find("gpupool_suspensions_ended_total{result=\"suspended\"} 1") != std::string::npos);
  changing.expect_resumed();
  CHECK(metrics().find("\ngpupool_suspended_sessions 0\n") != std::string::npos);
  CHECK(metrics().find("gpupool_suspended_sessions_ended_total{result=\"resumed\"} 1") != std::string::npos);
  CHECK(sessions_of(*changing.pool)[0]["state"] == "running");
  changing.expect_nothing_lost();
  const std::string records = content_of(audit);
  INFO(records);
  for (const char* const event : {"\"session_suspended\"", "\"suspended_session_resumed\"",
                                  "\"does\":\"suspend\"", "\"does\":\"resume\""})
    CHECK(records.find(event) != std::string::npos);
}

TEST_CASE("blocks of zeros take no room in the file") {
  Changing changing(4);
  changing.expect_suspended();
  const uint64_t small = changing.bytes;
  changing.expect_resumed();
  changing.expect_nothing_lost();
  CHECK(small < (24u << 20));
}

TEST_CASE("a session is resumed on another server that gets the file") {
  for (const bool encrypted : {false, true}) {
    Changing changing(16);
    Pool other({}, changing.store.options({"--suspended-folder", changing.store.folder.path()}));
    changing.expect_suspended(encrypted ? std::vector<std::string>{"--to", "disk", "--encrypt"}
                                        : std::vector<std::string>{"--to", "disk"});
    const std::string copy = changing.store.folder.path() / "copy";
    std::filesystem::copy_file(changing.path, copy);
    Process there(admin_words(other.poold(), {"--json", "resume", "--file", copy}), {});
    CHECK(other.poold().await_log("suspended_session_found"));
    changing.expect_resumed({"--at", other.poold().endpoint().text()});
    CHECK(there.wait(kLongPatience) == 0);
    CHECK(sessions_of(other).size() == 1);
    CHECK(sessions_of(other)[0]["state"] == "running");
    CHECK(sessions_of(*changing.pool).empty());
    CHECK(eventually([&] { return !std::filesystem::exists(copy) && changing.store.count() == 0; }));
    changing.expect_nothing_lost();
  }
}

TEST_CASE("the file goes when the program has gone, or an administrator ends the session") {
  Changing killed(4, {"--resume-timeout", "2"});
  killed.expect_suspended({"--to", "disk"});
  CHECK(killed.store.count() == 1);
  ::kill(killed.app.pid(), SIGKILL);
  CHECK(eventually([&] { return killed.store.count() == 0; }));
  CHECK(killed.pool->poold().await_log("suspended_session_dropped"));
  CHECK(sessions_of(*killed.pool).empty());

  Changing ended(4);
  ended.expect_suspended({"--to", "disk"});
  CHECK(pool_admin(*ended.pool, {"kill", ended.number, "--reason", "enough"}).status == 0);
  CHECK(eventually([&] { return ended.store.count() == 0; }));
  CHECK(ended.app.wait(kLongPatience) != 0);
  INFO(ended.app.output());
  CHECK(ended.app.output().find("enough") != std::string::npos);
}

TEST_CASE("a session on disk outlives poold, and one in memory does not") {
  for (const bool on_disk : {true, false}) {
    Changing changing(4);
    changing.expect_suspended({"--to", on_disk ? "disk" : "memory"});
    const std::string url = changing.pool->poold().url();
    CHECK(changing.pool->poold().stop() == 0);
    changing.pool.reset();
    changing.pool.emplace(Environment{}, changing.store.options({"--listen", url}));
    if (!on_disk) {
      CHECK(changing.app.wait(kLongPatience) != 0);
      INFO(changing.app.output());
      CHECK(changing.app.output().find("has ended") != std::string::npos);
      continue;
    }
    REQUIRE(changing.pool->poold().await_log("suspended_session_found"));
    changing.number = std::to_string(sessions_of(*changing.pool)[0]["number"].get<uint64_t>());
    changing.expect_resumed();
    changing.expect_nothing_lost();
    CHECK(changing.store.count() == 0);
  }
}
