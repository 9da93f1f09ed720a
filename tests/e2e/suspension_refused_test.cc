// Sessions that cannot be suspended or resumed stay what they are: running, or suspended and whole.
#include <fstream>

#include "tests/e2e/suspended_program.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("a server without the key does not resume an encrypted session, which stays suspended") {
  Changing changing(4);
  changing.store.folder.write_secret("other", std::string(32, 'x'));
  Pool other({}, changing.store.options({"--suspended-folder", changing.store.folder.path(),
                                         "--suspended-key", changing.store.folder.path() / "other"}));
  changing.expect_suspended({"--to", "disk", "--encrypt"});
  const auto refused = pool_admin(other, {"resume", "--file", changing.path});
  CHECK(refused.status == 1);
  CHECK(refused.output.find("another key") != std::string::npos);
  changing.expect_resumed();
  changing.expect_nothing_lost();
}

TEST_CASE("a client that cannot go on elsewhere comes back, and is resumed at home") {
  Changing changing(4);
  changing.expect_suspended({"--to", "disk"});
  const Json away = changing.resume({"--at", "tcp://127.0.0.1:1"});
  INFO(away.dump());
  CHECK(away["resumed"] == false);
  CHECK(away["reason"].get<std::string>().find("tcp://127.0.0.1:1") != std::string::npos);
  changing.expect_resumed();
  changing.expect_nothing_lost();
}

// The file is altered, cut or exchanged: nothing of it is used, and with the right file the session goes on.
TEST_CASE("a session whose file is damaged stays suspended") {
  Changing changing(4);
  for (const bool encrypted : {false, true}) {
    changing.expect_suspended(encrypted ? std::vector<std::string>{"--to", "disk", "--encrypt"}
                                        : std::vector<std::string>{"--to", "disk"});
    const std::string good = content_of(changing.path);
    for (const double place : {0.0001, 0.3, 0.999}) {
      for (const bool cut : {false, true}) {
        std::string bad = good;
        const auto at = static_cast<size_t>(static_cast<double>(good.size()) * place);
        if (cut)
          bad.resize(at);
        else
          bad[at] = static_cast<char>(bad[at] ^ 1);
        std::ofstream(changing.path, std::ios::binary | std::ios::trunc) << bad;
        const Json reply = changing.resume();
        INFO(reply.dump() << " at byte " << at << (cut ? ", cut" : ""));
        CHECK(reply["resumed"] == false);
      }
    }
    std::ofstream(changing.path, std::ios::binary | std::ios::trunc) << good;
    CHECK(sessions_of(*changing.pool).size() == 1);
    changing.expect_resumed();
  }
  changing.expect_nothing_lost();
}

TEST_CASE("the file of another session is not resumed in place of the right one") {
  Changing one(4);
  one.expect_suspended({"--to", "disk"});
  const std::string earlier = content_of(one.path);
  one.expect_resumed();
  one.expect_suspended({"--to", "disk"});
  const std::string good = content_of(one.path);
  std::ofstream(one.path, std::ios::binary | std::ios::trunc) << earlier;
  const Json reply = one.resume();
  INFO(reply.dump());
  CHECK(reply["resumed"] == false);
  CHECK(reply["reason"].get<std::string>().find("another session") != std::string::npos);
  std::ofstream(one.path, std::ios::binary | std::ios::trunc) << good;
  one.expect_resumed();
  one.expect_nothing_lost();
}

TEST_CASE("a session for whose file there is no room goes on") {
  Changing changing(16, {"--suspended-disk-mib", "4"});
  const Json reply = changing.suspend({"--to", "disk"});
  INFO(reply.dump());
  CHECK(reply["suspended"] == false);
  CHECK(reply["reason"].get<std::string>().find("4 MiB") != std::string::npos);
  CHECK(changing.store.count() == 0);
  changing.expect_suspended({"--to", "memory"});
  changing.expect_resumed();
  changing.expect_nothing_lost();
}

TEST_CASE("what a server does not offer is refused, and the session goes on") {
  Pool pool({}, {"--resume-timeout", "30"});
  Process app({driver_app(), "counting", std::to_string(100 / kShare), "40000"},
              pool.through({{"GPUPOOL_SHM", "0"}}));
  REQUIRE(app.await_output("working"));
  for (const auto& [words, reason] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"suspend", "1"}, "--host-memory-for-suspended-mib"},
           {{"suspend", "1", "--to", "disk"}, "--suspended-folder"},
           {{"suspend", "2"}, "--host-memory-for-suspended-mib"},
           {{"resume", "1"}, "is not suspended"},
           {{"resume", "--file", "/no/such/file"}, "No such file"}}) {
    const auto refused = pool_admin(pool, words);
    INFO(refused.output);
    CHECK(refused.status == 1);
    CHECK(refused.output.find(reason) != std::string::npos);
  }
  CHECK(app.wait(kLongPatience) == 0);
}

TEST_CASE("what cannot migrate cannot be suspended") {
  const Store store;
  Pool pool({}, store.options());
  Process app({driver_app(), "counting", std::to_string(1000 / kShare), "40000"},
              pool.through({{"GPUPOOL_SHM", "1"}, {"GPUPOOL_TRANSPORT", "auto"}}));
  REQUIRE(app.await_output("working"));
  const Json reply = json_in(pool_admin(pool, {"suspend", "1"}));
  INFO(reply.dump());
  CHECK(reply["suspended"] == false);
  CHECK(reply["reason"].get<std::string>().find("pinned memory that the server maps") != std::string::npos);
  const int status = app.wait(kLongPatience);
  INFO(app.output());
  CHECK(status == 0);
}

TEST_CASE("a session is suspended and resumed once at a time") {
  Changing changing(4);
  changing.expect_suspended();
  const auto again = pool_admin(*changing.pool, {"suspend", changing.number});
  CHECK(again.status == 1);
  CHECK(again.output.find("suspended already") != std::string::npos);
  changing.app.signal(SIGSTOP);  // the client cannot come
  Process first(admin_words(changing.pool->poold(), {"resume", changing.number}), {});
  const bool resuming = eventually([&] {
    const Json seen = sessions_of(*changing.pool);
    return std::any_of(seen.begin(), seen.end(), [](const Json& one) { return one["state"] == "resuming"; });
  });
  const auto second = pool_admin(*changing.pool, {"resume", changing.number});
  changing.app.signal(SIGCONT);
  INFO(second.output);
  CHECK(resuming);
  CHECK(second.status == 1);
  CHECK(first.wait(kLongPatience) == 0);
  changing.expect_nothing_lost();
}

TEST_CASE("a session for which the GPU or the quota has no room stays suspended, with the reason") {
  Changing changing(100);
  changing.expect_suspended();
  const auto expect_refusal = [&](const std::string& reason) {
    const Json reply = changing.resume();
    INFO(reply.dump());
    CHECK(reply["resumed"] == false);
    CHECK(reply["reason"].get<std::string>().find(reason) != std::string::npos);
    CHECK(eventually([&] { return sessions_of(*changing.pool)[0]["state"] == "suspended"; }));
  };
  REQUIRE(pool_admin(*changing.pool, {"quota", "set", "default", "memory=64MiB"}).status == 0);
  expect_refusal("another memory size");
  REQUIRE(pool_admin(*changing.pool, {"quota", "set", "default", "memory=unlimited"}).status == 0);
  {
    const EndFile file;
    Process other({driver_app(), "changing", file.end, "150"}, changing.through({}));
    REQUIRE(other.await_output("working"));
    expect_refusal("OUT_OF_MEMORY");
    file.end_program();
    CHECK(other.wait(kLongPatience) == 0);
  }
  CHECK(eventually([&] { return sessions_of(*changing.pool).size() == 1; }));
  changing.expect_resumed();
  changing.expect_nothing_lost();
}

// The new worker is killed at any time: the session is whole in its file, or has gone on.
// Each moment gets a program of its own, since a session that has gone on ends with its worker.
TEST_CASE("a new worker that dies costs nothing") {
  for (const unsigned milliseconds : {0u, 10u, 40u, 80u, 160u}) {
    Changing changing(64 / kShare);
    changing.expect_suspended();
    const size_t started = occurrences(changing.pool->poold().log(), "session_started");
    Process admin(admin_words(changing.pool->poold(), {"--json", "resume", changing.number}), {});
    CHECK(changing.pool->poold().await_log("session_started", started + 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));  // the moment is what is tested
    for (const pid_t worker : changing.pool->poold().workers()) ::kill(worker, SIGKILL);
    const bool resumed = admin.wait(kLongPatience) == 0;
    INFO("workers killed after " << milliseconds << " ms; " << admin.output() << changing.app.output());
    if (resumed) {
      CHECK(changing.app.wait() > 0);  // its session has gone on, and ended with its worker as ever
      continue;
    }
    changing.expect_resumed();
    changing.expect_nothing_lost();
  }
}

TEST_CASE("poold does not start with a folder of suspended sessions that other users can open") {
  const Store store;
  std::vector<std::string> words{program_path("poold"), "--device",       test_device(), "--listen",
                                 "tcp://127.0.0.1:0",   "--admin-socket", "none"};
  for (const std::string& word : store.options()) words.push_back(word);
  for (const unsigned mode : {0755u, 0704u, 0720u}) {
    std::filesystem::permissions(store.files(), std::filesystem::perms(mode));
    const Finished refused = run_to_end(words);
    INFO(std::oct << mode << ": " << refused.output);
    CHECK(refused.status == 1);
    CHECK(refused.output.find("--suspended-folder " + store.files()) != std::string::npos);
    CHECK(refused.output.find("other users can open it; chmod 700") != std::string::npos);
  }
}
