// Tests of the contract of Store (store.h) for every kind of store. Several Store objects stand for several
// processes.
#include <signal.h>

#include <algorithm>
#include <thread>

#include "scheduler/store/open/open_store.h"
#include "tests/scheduler/store/kinds.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::scheduler;
using namespace std::chrono_literals;
using gpupool::testing::Process;
using gpupool::testing::program_path;

TEST_CASE("every store keeps the contract") {
  const std::string name = GENERATE(from_range(store_kinds()));
  INFO(name);
  const auto kind = make_store_kind(name);
  const auto open = [&] {
    auto store = open_store(kind->address());
    REQUIRE(store);
    return std::move(*store);
  };
  auto one = open();
  const auto term = one->campaign("one:1", 10s);
  REQUIRE(term);
  CHECK(one->leads());
  CHECK(one->leader() == "one:1");

  SECTION("entries are put, changed and deleted together, and come by key") {
    REQUIRE(
        one->write({{"b/2", "two"}, {"a/1", "one"}, {"b/1", std::string("\0\xff", 2)}, {"c", ""}}, *term));
    CHECK(*one->all("") ==
          std::vector<Entry>{{"a/1", "one"}, {"b/1", std::string("\0\xff", 2)}, {"b/2", "two"}, {"c", ""}});
    CHECK(*one->all("b/") == std::vector<Entry>{{"b/1", std::string("\0\xff", 2)}, {"b/2", "two"}});
    CHECK(one->all("d")->empty());
    REQUIRE(one->write({{"b/2", "again"}, {"a/1", std::nullopt}, {"nothing", std::nullopt}}, *term));
    CHECK(one->all("")->size() == 3);
    CHECK(one->all("b/2")->at(0).second == "again");
    one.reset();
    CHECK(open()->all("")->size() == 3);
  }
  SECTION("there is one leader; the next has a greater term") {
    auto two = open();
    const auto refused = two->campaign("two:2", 200ms);
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::refused);
    CHECK(two->leader() == "one:1");
    CHECK(!two->leads());
    CHECK(two->write({{"x", "y"}}, *term).error().code == ErrorCode::refused);
    one->resign();
    CHECK(!one->leads());
    const auto next = two->campaign("two:2", 10s);
    REQUIRE(next);
    CHECK(*next > *term);
    CHECK(one->write({{"x", "y"}}, *term).error().code == ErrorCode::refused);
    CHECK(two->write({{"x", "y"}}, *term).error().code == ErrorCode::refused);
    CHECK(two->all("")->empty());
  }
  SECTION("whoever waits becomes the leader when the present one goes") {
    auto two = open();
    std::thread leaver([&] {
      std::this_thread::sleep_for(200ms);
      one->resign();
    });
    const auto next = two->campaign("two:2", 20s);
    leaver.join();
    REQUIRE(next);
    CHECK(*next > *term);
    CHECK(two->write({{"x", "y"}}, *next));
  }
  SECTION(
      "a leader that is gone without a word is followed, and what it was writing is there as a whole or not "
      "at all") {
    one->resign();
    Process other({program_path("store_leader"), kind->address(), "other"}, {});
    REQUIRE(other.await_output("written"));
    other.signal(SIGKILL);
    other.wait();
    const auto next = one->campaign("one:1", 30s);
    REQUIRE(next);
    CHECK(*next > *term + 1);
    const auto entries = *one->all("all/");
    REQUIRE(entries.size() == 400);
    CHECK(std::all_of(entries.begin(), entries.end(),
                      [&](const Entry& entry) { return entry.second == entries[0].second; }));
  }
  SECTION("a thousand entries at once, all or none") {
    std::vector<Write> many;
    for (int i = 0; i < 1000; ++i) many.push_back({"lease/" + std::to_string(i), std::string(500, 'x')});
    REQUIRE(one->write(many, *term));
    CHECK(one->all("lease/")->size() == 1000);
  }
  SECTION("of two changes of one entry in one write the later one counts") {
    REQUIRE(one->write(
        {{"a", "1"}, {"a", "2"}, {"b", "1"}, {"b", std::nullopt}, {"c", std::nullopt}, {"c", "1"}}, *term));
    CHECK(*one->all("") == std::vector<Entry>{{"a", "2"}, {"c", "1"}});
  }
}

TEST_CASE("plaintext etcd on another host requires permission") {
  for (const char* const text :
       {"etcd://192.0.2.1", "etcd://127.0.0.1:2379,db-1:2379", "etcd://127.evil.example",
        "etcd://[fe80::1]:2379/pool", "etcd://localhost.example"}) {
    INFO(text);
    const auto refused = open_store(text);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::invalid);
    CHECK(refused.error().message.find("use --insecure in a trusted network") != std::string::npos);
    CHECK(open_store(text, {}, true));
  }
  for (const char* const text :
       {"etcd://127.0.0.1", "etcd://[::1]:2379,localhost:1,127.1.2.3", "etcds://db-1,db-2"}) {
    INFO(text);
    CHECK(open_store(text));
  }
}

TEST_CASE("an invalid store address is rejected with the valid forms") {
  for (const char* text : {"", "sqlite:", "mysql:x", "/tmp/x"}) {
    const auto store = open_store(text);
    REQUIRE(!store);
    CHECK(store.error().message.find("sqlite:FILE") != std::string::npos);
  }
  CHECK(open_store("sqlite:/nowhere/at/all").error().code == ErrorCode::unavailable);
}
