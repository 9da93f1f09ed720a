#include "server/tenants/tenants_file.h"

#include <unistd.h>

#include "common/token/token.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

Result<std::vector<Tenant>> read(const std::string& text) {
  return read_tenants(toml::parse(text));
}

const std::string kHash = "sha256:" + std::string(64, 'a');

}  // namespace

TEST_CASE("tenants are read with their credentials and their quotas override the default quota") {
  const auto tenants = read(R"(
[default_quota]
memory = "2GiB"
streams = 7

[[tenant]]
name = "a"
tokens = [")" + kHash + R"("]
certificates = ["a.example"]
users = ["root", 4242]
[tenant.quota]
memory = "8GiB"
guaranteed_memory = "1GiB"
compute = 12.5
mode = "hard"
priority = "latency-critical"
bandwidth_to_device = "1GB/s"
bandwidth-to-host = 1000
sessions = 3
modules = 5
queued_bytes = "64MiB"
[tenant.gpu.0]
compute = 0.1
memory = "2GiB"
[tenant.gpu.63]
guaranteed-memory = 0
[tenant.gpu.GPU-00112233-4455-6677-8899-AABBCCDDEEFF]
compute = 100.0

[[tenant]]
name = "b"
certificates = ["b"]
)");
  if (!tenants) FAIL(tenants.error().message);
  REQUIRE(tenants->size() == 2);
  const Tenant& a = (*tenants)[0];
  CHECK(a.name == "a");
  REQUIRE(a.tokens.size() == 1);
  CHECK(hash_text(a.tokens[0]) == kHash);
  CHECK(a.certificates == std::vector<std::string>{"a.example"});
  CHECK(a.users == std::vector<uid_t>{0, 4242});
  CHECK(a.quota ==
        quota::Quota{
            .each = {.memory_bytes = 8ull << 30, .guaranteed_memory_bytes = 1ull << 30, .compute_milli = 125},
            .gpus = {{0, {.memory_bytes = 2ull << 30, .compute_milli = 1}},
                     {63, {.guaranteed_memory_bytes = 0}}},
            .mode = quota::Mode::hard,
            .priority = quota::Priority::latency_critical,
            .to_device_bytes_per_second = 1'000'000'000,
            .to_host_bytes_per_second = 1000,
            .sessions = 3,
            .streams = 7,
            .modules = 5,
            .queued_bytes = 64u << 20});
  CHECK(a.named_gpus == std::map<std::string, quota::GpuLimits>{
                            {"GPU-00112233-4455-6677-8899-aabbccddeeff", {.compute_milli = 1000}}});
  CHECK((*tenants)[1].quota == quota::Quota{.each = {.memory_bytes = 2ull << 30}, .streams = 7});
}

TEST_CASE("without tenants the default quota is the default tenant's") {
  CHECK(read("")->empty());
  const auto tenants = read("[default_quota]\ncompute = 50");
  REQUIRE(tenants);
  REQUIRE(tenants->size() == 1);
  CHECK(tenants->front().name == "default");
  CHECK(tenants->front().quota.each.compute_milli == 500);
}

TEST_CASE("every error names its key and says what is valid") {
  const std::pair<std::string, std::string> mistakes[] = {
      {"tenant = 3", "tenant: must be an array of tables; write [[tenant]]"},
      {"[tenant]\nname = 'a'", "write [[tenant]], not [tenant]"},
      {"tenant = ['a']", "tenant: must be an array of tables; write [[tenant]]"},
      {"\n\n[[tenant]]\ntokens = []", "tenant at line 3: name: missing; write name = \"NAME\""},
      {"[[tenant]]\nname = 1", "tenant at line 1: name: must be a string"},
      {"[[tenant]]\nname = 'a b'", "tenant 'a b': name: must be 1 to 64 letters"},
      {"[[tenant]]\nname = 'a'\ntoken = 'x'", "tenant 'a': token: unknown key; tenant keys are name, tokens"},
      {"[[tenant]]\nname = 'a'\ntokens = 'x'", "tenant 'a': tokens: must be an array"},
      {"[[tenant]]\nname = 'a'\ntokens = ['x']", "tenant 'a': tokens: must be \"sha256:\" and 64"},
      {"[[tenant]]\nname = 'a'\ntokens = ['sha256:" + std::string(63, 'a') + "g']",
       "tenant 'a': tokens: must be"},
      {"[[tenant]]\nname = 'a'\nusers = ['nobody-of-that-name']",
       "tenant 'a': users: this host has no user 'nobody-of-that-name'"},
      {"[[tenant]]\nname = 'a'\nusers = [-1]", "tenant 'a': users: must be"},
      {"[[tenant]]\nname = 'a'\nquota = 1", "tenant 'a': quota: must be a table"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nmemory = '8GX'",
       "tenant 'a': quota.memory: '8GX' is not a size; write it as"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nmemory = '8'",
       "tenant 'a': quota.memory: '8' is 8 bytes: did you mean 8GiB?"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nguaranteed_memory = 8",
       "tenant 'a': quota.guaranteed_memory: '8' is 8 bytes: did you mean 8GiB?"},
      {"[[tenant]]\nname = 'a'\n[tenant.gpu.1]\nmemory = 512",
       "tenant 'a': gpu.1: memory: '512' is 512 bytes: did you mean 512GiB?"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nmemory = 1.5", "tenant 'a': quota.memory: '' is not a size"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nmemory = -1", "tenant 'a': quota.memory: '-1' is not a size"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nbandwidth_to_host = '1GB/h'",
       "quota.bandwidth_to_host: '1GB/h' is not a rate"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\ncompute = 0",
       "tenant 'a': quota.compute: must be a percentage from 0.1 to 100, in steps of 0.1"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\ncompute = 101", "quota.compute: must be a percentage"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\ncompute = 12.25", "quota.compute: must be a percentage"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\ncompute = '5'",
       "quota.compute: must be a percentage from 0.1 to 100, in steps of 0.1, such as 25 or 12.5, without "
       "quotes"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\ncompute = 1e-300", "quota.compute: must be a percentage"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\ncompute = nan", "quota.compute: must be a percentage"},
      {"[[tenant]]\nname = 'a'\ngpu = 1", "tenant 'a': gpu: must be a table"},
      {"[[tenant]]\nname = 'a'\n[tenant.gpu]\n0 = 1", "tenant 'a': gpu.0: must be a table"},
      {"[[tenant]]\nname = 'a'\n[tenant.gpu.64]",
       "tenant 'a': gpu.64: must be a GPU's number from 0 to 63, or its UUID"},
      {"[[tenant]]\nname = 'a'\n[tenant.gpu.GPU-1]", "tenant 'a': gpu.GPU-1: must be a GPU's number"},
      {"[[tenant]]\nname = 'a'\n[tenant.gpu.1]\nsessions = 1",
       "tenant 'a': gpu.1: sessions: unknown key; keys are memory"},
      {"[[tenant]]\nname = 'a'\n[tenant.gpu.1]\ncompute = 0",
       "tenant 'a': gpu.1: compute: must be a percentage"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nguaranteed_memory = '2MiB'\n[tenant.gpu.1]\nmemory = '1MiB'",
       "tenant 'a': gpu.1: guaranteed_memory: must not be more than memory"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nmode = 'soft'",
       "quota.mode: must be one of elastic, hard, partition"},
      {"[default_quota]\nmode = 'partition'\ncompute = 40\n[[tenant]]\nname = 'a'\n[[tenant]]\nname = "
       "'b'\n[[tenant]]\nname = 'c'",
       "tenant 'c': quota.compute: the tenants' partitions would use 120 % of each GPU"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\npriority = 1",
       "quota.priority: must be one of best-effort, normal, latency-critical"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nsessions = -1", "quota.sessions: must be an integer"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nsessons = 1",
       "quota.sessons: unknown key; quota keys are memory"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nsessons = 1", "; did you mean 'sessions'?"},
      {"[[tenant]]\nname = 'a'\n[tenant.quota]\nmemory = '1MiB'\nguaranteed_memory = '2MiB'",
       "must not be more than memory"},
      {"[default_quota]\nx = 1", "default_quota.x: unknown key"},
      {"[[tenant]]\nname = 'a'\nusers = [1]\n[[tenant]]\nname = 'b'",
       "tenant 'b': has no tokens, certificates or users, but"},
      {"[[tenant]]\nname = 'a'\ntokens = ['" + kHash + "', '" + kHash + "']",
       "tokens, retired_tokens: duplicate token"},
  };
  for (const auto& [text, said] : mistakes) {
    INFO(text);
    const auto tenants = read(text);
    REQUIRE_FALSE(tenants);
    INFO(tenants.error().message);
    CHECK(tenants.error().message.find(said) != std::string::npos);
    CHECK(tenants.error().code == ErrorCode::invalid);
  }
}

TEST_CASE("a token is new each time and its hash is read back") {
  const auto one = make_token(), other = make_token();
  REQUIRE(one);
  CHECK(one->size() == 64);
  CHECK(*one != *other);
  CHECK(*parse_token_hash(hash_text(hash_token(*one))) == hash_token(*one));
  CHECK(hash_text(hash_token("abc")) ==
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
