// Tests that docs/softgpu-rules.md matches the table of rules.
#include "server/softgpu/runtime/rules.h"

#include <fstream>
#include <iterator>
#include <set>

#include "tests/server/softgpu/rules/page.h"
#include "tests/support/catch.h"

TEST_CASE("every rule has a unique name and a description and a source") {
  std::set<std::string_view> names;
  for (const auto& row : gpupool::softgpu::rule_rows()) {
    INFO(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(row.behaviour.ends_with('.'));
    CHECK(!row.source.empty());
    CHECK(row.behaviour.find('|') == std::string_view::npos);
  }
}

TEST_CASE("a fixed rule has a description and a source") {
  CHECK(gpupool::softgpu::fixed_rules().size() >= 5);
  for (const auto& rule : gpupool::softgpu::fixed_rules()) {
    INFO(rule.behaviour);
    CHECK(rule.behaviour.ends_with('.'));
    CHECK(!rule.source.empty());
  }
}

TEST_CASE("docs/softgpu-rules.md is the page generated from the table") {
  std::ifstream in(RULES_PAGE);
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  const bool same = page == gpupool::testing::rules_page();
  INFO("regenerate docs/softgpu-rules.md: cmake --build --preset dev --target softgpu_rules");
  CHECK(same);
}
