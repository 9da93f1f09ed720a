// Tests of etcd addresses and of the redo log for large writes.
#include "scheduler/store/etcd/address.h"
#include "scheduler/store/etcd/redo_log.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::scheduler::etcd;

TEST_CASE("addresses of etcd clusters are read") {
  const auto one = parse_address("etcd://db-1");
  REQUIRE(one);
  CHECK(one->endpoints == std::vector<std::string>{"db-1:2379"});
  CHECK(one->prefix == "gpupool");
  CHECK(!one->tls);
  const auto three = parse_address("etcds://10.0.0.1:1,[::1]:2,[fe80::1]/pools/a/");
  REQUIRE(three);
  CHECK(three->endpoints == std::vector<std::string>{"10.0.0.1:1", "[::1]:2", "[fe80::1]:2379"});
  CHECK(three->prefix == "pools/a");
  CHECK(three->tls);
  CHECK(parse_address("etcd://a/")->prefix == "gpupool");
  for (const char* text : {"etcd://", "etcd://a,", "etcd://,a", "etcd://a:", "etcd://a:0", "etcd://a:70000",
                           "etcd://a:1x", "etcd://u@a", "etcd://[::1", "etcd://::1", "etcd://a//b"}) {
    INFO(text);
    CHECK(!parse_address(text));
  }
}

TEST_CASE("prefix_end returns the first key after all keys of a prefix") {
  CHECK(prefix_end("a/") == "a0");
  CHECK(prefix_end("a\xff") == "b");
  CHECK(prefix_end("\xff") == std::string(1, '\0'));
}

namespace {

Operations puts(int count, size_t bytes) {
  Operations out;
  for (int i = 0; i < count; ++i) {
    auto& put = *out.Add()->mutable_request_put();
    put.set_key("k" + std::to_string(i));
    put.set_value(std::string(bytes, static_cast<char>('a' + i % 26)));
  }
  return out;
}

std::string text(const Operations& operations) {
  std::string out;
  for (const auto& one : operations) out += one.SerializeAsString() + "\n";
  return out;
}

}  // namespace

TEST_CASE("a write that exceeds one transaction is split") {
  CHECK(fits_whole(puts(kMaxOperations, 10)));
  CHECK(!fits_whole(puts(kMaxOperations + 1, 10)));
  CHECK(!fits_whole(puts(11, 100'000)));
  CHECK(cut(puts(2 * kMaxOperations, 10)).size() == 2);
  CHECK(cut(puts(2 * kMaxOperations + 1, 10)).size() == 3);
  CHECK(cut(puts(25, 100'000)).size() == 3);
  for (const auto& piece : cut(puts(300, 20'000))) CHECK(fits_whole(piece));
}

TEST_CASE("a redo record is read whole or rejected") {
  const RedoLog log("p/batch");
  const Operations operations = puts(300, 10'000);
  const auto parts = log.record(operations);
  REQUIRE(parts);
  REQUIRE(parts->size() == 3);
  const auto read = [&](size_t without) {
    RedoLog::Reader reader(log);
    size_t number = 0;
    for (const Operations& part : *parts) {
      for (const auto& one : part) {
        if (number++ == without) continue;
        etcdserverpb::KeyValue entry;
        entry.set_key(one.request_put().key());
        entry.set_value(one.request_put().value());
        reader.add(entry);
      }
    }
    return text(reader.whole());
  };
  CHECK(read(99) == text(operations));
  for (size_t i = 0; i < 4; ++i) CHECK(read(i).empty());
  CHECK(log.record(puts(1, 2 << 20)).error().code == ErrorCode::limit);
}
