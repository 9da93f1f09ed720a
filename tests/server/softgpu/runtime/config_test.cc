// Tests softgpu's environment variables for hardware queues, rules and costs.
#include "server/softgpu/runtime/config.h"

#include <stdlib.h>

#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

struct Variable {
  Variable(const char* name, const char* value) : name(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name); }
  const char* const name;
};

Config config() {
  auto read = read_config();
  if (const auto* error_message = std::get_if<std::string>(&read)) FAIL(*error_message);
  return std::get<Config>(read);
}

std::string error_message() {
  auto read = read_config();
  const auto* text = std::get_if<std::string>(&read);
  return text == nullptr ? "" : *text;
}

}  // namespace

TEST_CASE("queues have 1024 entries scaled by CUDA_SCALE_LAUNCH_QUEUES") {
  CHECK(config().queue_entries == 1024);
  const std::pair<const char*, uint32_t> scales[] = {
      {"0.25x", 256}, {"0.5x", 512}, {"2x", 2048}, {"4x", 4096}, {"3x", 1024}};
  for (const auto& [scale, entries] : scales) {
    const Variable set("CUDA_SCALE_LAUNCH_QUEUES", scale);
    CHECK(config().queue_entries == entries);
  }
  const Variable fewer("SOFTGPU_QUEUE_ENTRIES", "2"), quarter("CUDA_SCALE_LAUNCH_QUEUES", "0.25x");
  CHECK(config().queue_entries == 1);
}

TEST_CASE("rejects an invalid SOFTGPU_QUEUE_ENTRIES") {
  for (const char* value : {"0", "-1", "many", "1k", "1048577"}) {
    const Variable set("SOFTGPU_QUEUE_ENTRIES", value);
    CHECK(error_message().find("SOFTGPU_QUEUE_ENTRIES") != std::string::npos);
  }
}

TEST_CASE("a context has 8 queues or 1 to 32 with CUDA_DEVICE_MAX_CONNECTIONS") {
  CHECK(config().connections == 8);
  const std::pair<const char*, unsigned> settings[] = {
      {"1", 1}, {"32", 32}, {"0", 1}, {"100", 32}, {"some", 8}};
  for (const auto& [value, connections] : settings) {
    const Variable set("CUDA_DEVICE_MAX_CONNECTIONS", value);
    CHECK(config().connections == connections);
  }
}

TEST_CASE("rules are switched by name") {
  CHECK(config().rules.enforces(Rule::bounded_queues));
  {
    const Variable off("SOFTGPU_RULES", "-bounded_queues");
    CHECK(!config().rules.enforces(Rule::bounded_queues));
  }
  {
    const Variable none("SOFTGPU_RULES", "none");
    for (size_t i = 0; i < rule_rows().size(); ++i) CHECK(!config().rules.enforces(static_cast<Rule>(i)));
  }
  const Variable one("SOFTGPU_RULES", "none,+bounded_queues");
  CHECK(config().rules.enforces(Rule::bounded_queues));
}

TEST_CASE("rejects an unknown rule with a list of the rules") {
  for (const char* value : {"-bounded_queue", "bounded_queues", "-", ",", "all"}) {
    const Variable set("SOFTGPU_RULES", value);
    INFO(value);
    for (const RuleRow& row : rule_rows()) CHECK(error_message().find(row.name) != std::string::npos);
  }
}

TEST_CASE("costs are off by default and a missing costs file is rejected with its path") {
  CHECK(!config().costs.on());
  {
    const Variable h100("SOFTGPU_COSTS", "h100");
    CHECK(config().costs.price(Cost::mem_create) > 0);
  }
  const Variable nowhere("SOFTGPU_COSTS", "/nowhere");
  CHECK(error_message().starts_with("softgpu: SOFTGPU_COSTS=/nowhere: "));
}
