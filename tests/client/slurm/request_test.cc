// Tests of the value of --gpupool and of Slurm's lists of hosts.
#include "client/slurm/request.h"

#include "tests/support/catch.h"
#include "tests/support/has.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("the terms of --gpupool become a query string") {
  CHECK(*slurm::request_query("") == "");
  CHECK(*slurm::request_query("gpus=2,memory=8G,compute=50") == "gpus=2&memory=8GiB&compute=50");
  CHECK(*slurm::request_query("model=A 100&x,one-host,model=L4") == "model=A%20100%26x&one-host=1&model=L4");
  CHECK(*slurm::request_query("memory=512MiB,host-memory=1T") == "memory=512MiB&host-memory=1TiB");
  CHECK(*slurm::request_query("memory=1.5G") == "memory=1.5GiB");
  CHECK(*slurm::request_query("memory=8GB") == "memory=8GB");
}

TEST_CASE("terms that pool-run does not know are refused by name") {
  for (const char* const option :
       {"gpu=2", "gpus=2,,memory=8G", "./app", "token=secret", "gpus=2,server=x"}) {
    INFO(option);
    const auto query = slurm::request_query(option);
    REQUIRE_FALSE(query);
    CHECK(has(query.error().message, "--gpupool: unknown term '"));
  }
  REQUIRE_FALSE(slurm::request_query("gpus"));
  CHECK(has(slurm::request_query("gpus").error().message, "'gpus' has no value"));
  CHECK_FALSE(slurm::request_query("one-host=1"));
}

TEST_CASE("the first host of a list is found") {
  CHECK(slurm::first_host("gpu1") == "gpu1");
  CHECK(slurm::first_host("gpu[07-09,11],login1") == "gpu07");
  CHECK(slurm::first_host("login1,gpu[07-09]") == "login1");
  CHECK(slurm::first_host("rack[2,4]n[10-12]x") == "rack2n10x");
  CHECK(slurm::first_host("n[5]") == "n5");
  CHECK(slurm::first_host("").empty());
  CHECK(slurm::first_host("broken[1") == "broken");
}
