// Tests the table of costs, its page in docs, the files of SOFTGPU_COSTS, and the duration of a charge.
#include "server/softgpu/runtime/costs.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/server/softgpu/costs/page.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool::softgpu;

namespace {

uint64_t occupied = 0;  // nanoseconds
void remember(uint64_t nanoseconds) {
  occupied += nanoseconds;
}

class CostsFile {
 public:
  explicit CostsFile(const std::string& content) : path(folder_.write("costs.toml", content)) {}
  Costs costs() const {
    const auto parsed = Costs::parse(path, remember);
    if (const auto* wrong = std::get_if<std::string>(&parsed)) FAIL(*wrong);
    return std::get<Costs>(parsed);
  }
  std::string message() const {
    const auto parsed = Costs::parse(path);
    const auto* wrong = std::get_if<std::string>(&parsed);
    return wrong == nullptr ? "" : *wrong;
  }

 private:
  const gpupool::testing::TemporaryFolder folder_;

 public:
  const std::string path;
};

constexpr uint64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("every cost has a unique name and a meaning and a source and an h100 value") {
  std::set<std::string_view> names;
  for (const CostRow& row : cost_rows()) {
    INFO(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(row.meaning.ends_with('.'));
    CHECK((row.source.starts_with("estimate") || row.source.find("https://") != std::string_view::npos));
    CHECK(row.meaning.find('|') == std::string_view::npos);
    CHECK(row.source.find('|') == std::string_view::npos);
    CHECK(row.h100 > 0);
  }
}

TEST_CASE("a cost per MiB or node follows the cost per call whose name it continues") {
  for (size_t i = 0; i < cost_rows().size(); ++i) {
    const CostRow& row = cost_rows()[i];
    INFO(row.name);
    const std::string_view suffix = row.unit == CostUnit::mib    ? "_mib"
                                    : row.unit == CostUnit::node ? "_node"
                                                                 : "";
    CHECK(row.name.ends_with(suffix));
    if (!suffix.empty()) CHECK(row.name == std::string(cost_rows()[i - 1].name) + std::string(suffix));
  }
}

TEST_CASE("docs/softgpu-costs.md is the page generated from the table") {
  std::ifstream in(COSTS_PAGE);
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  const bool same = page == gpupool::testing::costs_page();
  INFO("regenerate docs/softgpu-costs.md: cmake --build --preset dev --target softgpu_costs");
  CHECK(same);
}

TEST_CASE("without SOFTGPU_COSTS nothing is charged") {
  const Costs off = std::get<Costs>(Costs::parse("", remember));
  occupied = 0;
  CHECK(!off.on());
  for (size_t i = 0; i < cost_rows().size(); ++i) off.charge(static_cast<Cost>(i));
  off.charge(Cost::mem_create, Cost::mem_create_mib, 100 * kMiB);
  CHECK(occupied == 0);
}

TEST_CASE("h100 has the table's values") {
  const Costs h100 = std::get<Costs>(Costs::parse("h100", remember));
  CHECK(h100.on());
  for (size_t i = 0; i < cost_rows().size(); ++i) {
    INFO(cost_rows()[i].name);
    CHECK(static_cast<double>(h100.price(static_cast<Cost>(i))) == Approx(cost_rows()[i].h100 * 1000));
  }
}

TEST_CASE("a file sets the costs that it names and all others are 0") {
  const CostsFile file(
      "# measured today\nmem_create = 20\nmem_create_mib = 0.5  # us\ngraph_launch_node = 0.25\n");
  const Costs costs = file.costs();
  CHECK(costs.price(Cost::mem_create) == 20'000);
  CHECK(costs.price(Cost::launch) == 0);
  occupied = 0;
  costs.charge(Cost::mem_create, Cost::mem_create_mib, 3 * kMiB);
  CHECK(occupied == 21'500);
  costs.charge(Cost::mem_create, Cost::mem_create_mib, kMiB / 2);
  CHECK(occupied == 21'500 + 20'250);
  costs.charge(Cost::graph_launch, Cost::graph_launch_node, 8);
  CHECK(occupied == 21'500 + 20'250 + 2'000);
  costs.charge(Cost::launch);
  CHECK(occupied == 21'500 + 20'250 + 2'000);
}

TEST_CASE("rejects an unknown cost with its line and a list of the costs") {
  const CostsFile file("mem_create = 20\nmem_creat = 20\n");
  const std::string message = file.message();
  INFO(message);
  CHECK(message.starts_with("softgpu: SOFTGPU_COSTS=" + file.path + ", line 2: unknown cost \"mem_creat\""));
  for (const CostRow& row : cost_rows()) CHECK(message.find(row.name) != std::string::npos);
}

TEST_CASE("rejects a cost that is not a number of microseconds") {
  for (const char* value : {"-1", "\"20\"", "true", "inf", "nan", "60000001", "[20]", "{us = 20}"}) {
    const CostsFile file("\nlaunch = " + std::string(value) + "\n");
    INFO(value << ": " << file.message());
    CHECK(file.message() == "softgpu: SOFTGPU_COSTS=" + file.path +
                                ", line 2: launch must be a number of microseconds from 0 to 60000000");
  }
}

TEST_CASE("rejects a file that is missing or not TOML and says what is expected") {
  const CostsFile words("launch 20\n");
  CHECK(words.message().starts_with("softgpu: SOFTGPU_COSTS=" + words.path + ", line 1: "));
  CHECK(words.message().ends_with(
      "expected \"h100\" or the path of a TOML file with lines \"name = microseconds\""));
  const auto parsed = Costs::parse("a100");
  REQUIRE(std::holds_alternative<std::string>(parsed));
  const std::string missing = std::get<std::string>(parsed);
  INFO(missing);
  CHECK(missing.starts_with("softgpu: SOFTGPU_COSTS=a100: "));
  CHECK(missing.ends_with("expected \"h100\" or the path of a TOML file with lines \"name = microseconds\""));
}

TEST_CASE("occupies a thread for at least the given time") {
  for (const uint64_t nanoseconds : {uint64_t{20'000}, uint64_t{200'000}, uint64_t{20'000'000}}) {
    const auto begin = std::chrono::steady_clock::now();
    occupy_thread(nanoseconds);
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::nanoseconds(nanoseconds));
  }
}
