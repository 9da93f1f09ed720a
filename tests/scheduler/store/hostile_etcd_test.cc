// Tests the etcd store's checks and limits of what it receives.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "etcd.grpc.pb.h"
#include "scheduler/store/etcd/client.h"
#include "scheduler/store/etcd/page_check.h"
#include "scheduler/store/open/open_store.h"
#include "tests/support/catch.h"
#include "tests/support/etcd.h"
#include "tests/support/raw_grpc.h"

using namespace gpupool;
using namespace gpupool::scheduler;
using namespace gpupool::testing;
using namespace std::chrono_literals;

namespace {

// An etcd whose answer to each range request is a page of entries with these keys, and that there are more.
class EndlessEtcd final : public etcdserverpb::KV::Service {
 public:
  using Key = std::function<std::string(uint64_t number)>;  // of the entry with this number, from 0
  EndlessEtcd(Key key, size_t value_bytes) : key_(std::move(key)), value_(value_bytes, 'v') {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_);
  }
  ~EndlessEtcd() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string store() const { return "etcd://127.0.0.1:" + std::to_string(port_) + "/test"; }
  uint64_t entries() const { return entries_; }

  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest*,
                     etcdserverpb::RangeResponse* reply) override {
    reply->mutable_header()->set_revision(1);
    for (int count = 0; count < etcd::kMaxPage; ++count) {
      etcdserverpb::KeyValue& one = *reply->add_kvs();
      one.set_key(key_(entries_++));
      one.set_value(value_);
    }
    reply->set_more(true);
    return grpc::Status::OK;
  }

 private:
  const Key key_;
  const std::string value_;
  int port_ = 0;
  std::atomic<uint64_t> entries_{0};
  std::unique_ptr<grpc::Server> server_;
};

// Returns why nothing is read.
std::string refusal(const EndlessEtcd& etcd) {
  const auto store = open_store(etcd.store());
  REQUIRE(store);
  auto all = std::async(std::launch::async, [&] { return (*store)->all(""); });
  if (all.wait_for(120s) != std::future_status::ready) {
    std::fputs("the store reads without end\n", stderr);
    std::abort();  // the future's destructor would wait for it
  }
  const auto entries = all.get();
  REQUIRE_FALSE(entries);
  return entries.error().message;
}

std::string key_of(uint64_t number) {
  const std::string digits = std::to_string(number);
  return "test/entry/" + std::string(20 - digits.size(), '0') + digits;
}

}  // namespace

TEST_CASE("pages without end from etcd do not fill the memory") {
  constexpr uint64_t kValue = 256 * 1024;
  const EndlessEtcd etcd(key_of, kValue);
  CHECK(refusal(etcd).find("etcd returned more than 512 MiB") != std::string::npos);
  CHECK(etcd.entries() <= 2 * etcd::kMostRangeBytes / kValue);  // a slow call is repeated
}

TEST_CASE("the same page of etcd again and again ends the reading") {
  const EndlessEtcd etcd([](uint64_t number) { return key_of(number % etcd::kMaxPage); }, 10);
  CHECK(refusal(etcd).find("etcd returned keys out of order") != std::string::npos);
  CHECK(etcd.entries() <= 8 * etcd::kMaxPage);
}

TEST_CASE("keys from etcd that were not requested are refused") {
  const EndlessEtcd etcd([](uint64_t) { return std::string("t"); }, 10);
  CHECK(refusal(etcd).find("etcd returned a key that was not requested") != std::string::npos);
  CHECK(etcd.entries() <= 4 * etcd::kMaxPage);
}

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
