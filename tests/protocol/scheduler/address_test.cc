#include "protocol/scheduler/address.h"

#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool;
using namespace gpupool::pool;
using namespace gpupool::testing;

namespace {

std::string refusal(const std::string& text) {
  const auto read = parse_pool_address(text);
  return read ? "" : read.error().message;
}

}  // namespace

TEST_CASE("an address without options requests one whole GPU") {
  const auto read = parse_pool_address("pool://head");
  REQUIRE(read);
  REQUIRE(read->schedulers.size() == 1);
  CHECK(read->schedulers[0].text() == "head:9800");
  CHECK(read->request.gpus() == 1);
  CHECK(read->request.compute_milli() == 1000);
  CHECK(read->request.memory_bytes() == 0);
  CHECK(read->request.priority() == lease::NORMAL);
  CHECK_FALSE(read->insecure);
}

TEST_CASE("reads all request options") {
  const auto read = parse_pool_address(
      "pool://"
      "a:1,[::1]:2?gpus=2&memory=8GiB&compute=12.5&model=NVIDIA%20A100&model=H100&one-host=1&cpus=1.5&host-"
      "memory=1MiB&mode=hard"
      "&priority=low&near=x&apart=y&apart=z&label=w&tenant=team&insecure=1");
  REQUIRE(read);
  REQUIRE(read->schedulers.size() == 2);
  CHECK(read->schedulers[0].text() == "a:1");
  CHECK(read->schedulers[1].text() == "[::1]:2");
  const pool::Request& request = read->request;
  CHECK(request.gpus() == 2);
  CHECK(request.memory_bytes() == 8ull << 30);
  CHECK(request.compute_milli() == 125);
  REQUIRE(request.models_size() == 2);
  CHECK(request.models(0) == "NVIDIA A100");
  CHECK(request.one_host());
  CHECK(request.cpu_milli() == 1500);
  CHECK(request.host_memory_bytes() == 1u << 20);
  CHECK(request.mode() == lease::HARD);
  CHECK(request.priority() == lease::BEST_EFFORT);
  CHECK(request.near(0) == "x");
  CHECK(request.apart_from_size() == 2);
  CHECK(request.labels(0) == "w");
  CHECK(request.tenant() == "team");
  CHECK(read->insecure);
}

TEST_CASE("names malformed request options") {
  CHECK(has(refusal("tcp://a:1"), "pool://"));
  for (const char* const text : {"pool://", "pool://?gpus=1", "pool://a:0", "pool://a:65536", "pool://a:x",
                                 "pool://a,", "pool://u@a:1", "pool://[a"}) {
    INFO(text);
    CHECK_FALSE(refusal(text).empty());
  }
  for (const char* const query :
       {"gpus=0",           "gpus=-1",     "gpus=1025",    "gpus=",         "gpus",
        "compute=0",        "compute=101", "compute=nan",  "compute=0.01",  "memory=0",
        "memory=8GX",       "model=",      "one-host=yes", "cpus=0",        "mode=soft",
        "priority=highest", "near=",       "insecure=2",   "gpus=1&gpus=2", "model=%4",
        "model=%zz"}) {
    INFO(query);
    const std::string text = query, name = text.substr(0, text.find('='));
    CHECK(has(refusal("pool://a?" + text), text.find('%') == std::string::npos ? name : "hexadecimal"));
  }
  CHECK(has(refusal("pool://a?memory=8"), "memory: '8' is 8 bytes: did you mean 8GiB?"));
  CHECK(has(refusal("pool://a?host-memory=64"), "host-memory: '64' is 64 bytes: did you mean 64GiB?"));
  CHECK(has(refusal("pool://http://a:1"), "use HOST:PORT without http://"));
  CHECK(has(refusal("pool://a?colour=red"), "'colour'"));
  CHECK(has(refusal("pool://a?colour=red"), "host-memory"));
}
