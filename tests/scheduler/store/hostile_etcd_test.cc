// Tests the etcd store's limit for what it receives.
#include <algorithm>
#include <chrono>
#include <future>

#include "scheduler/store/open/open_store.h"
#include "tests/support/catch.h"
#include "tests/support/etcd.h"
#include "tests/support/raw_grpc.h"

using namespace gpupool;
using namespace gpupool::scheduler;
using namespace gpupool::testing;
using namespace std::chrono_literals;

TEST_CASE("a reply without end from etcd does not fill the memory") {
  RawGrpc::Listener listener;
  const auto store = open_store("etcd://127.0.0.1:" + std::to_string(listener.port()));
  REQUIRE(store);
  auto leads = std::async(std::launch::async, [&] { return (*store)->campaign("one", 1s); });
  uint64_t accepted = 0;
  {
    RawGrpc etcd = listener.accept();
    REQUIRE(etcd.answer_next_call(UINT32_MAX));
    accepted = etcd.send(uint64_t{2} << 30);
    CHECK(etcd.refused());
  }
  CHECK(accepted < 400u << 20);
  CHECK_FALSE(leads.get());
}

TEST_CASE("many large entries are read in several replies") {
  constexpr int kEntries = 130;
  EtcdCluster etcd;
  const auto store = open_store(etcd.store());
  REQUIRE(store);
  const auto term = (*store)->campaign("one", 5s);
  REQUIRE(term);
  const std::string value(500'000, 'v');
  for (int count = 0; count < kEntries; ++count)
    REQUIRE((*store)->write({{"large/" + std::to_string(count), value}}, *term));
  const auto all = (*store)->all("large/");
  REQUIRE(all);
  CHECK(all->size() == kEntries);
  CHECK(std::all_of(all->begin(), all->end(), [&](const Entry& entry) { return entry.second == value; }));
}
