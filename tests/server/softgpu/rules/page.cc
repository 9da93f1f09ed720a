#include "tests/server/softgpu/rules/page.h"

#include "server/softgpu/runtime/rules.h"

namespace gpupool::testing {
namespace {

constexpr char kHead[] =
    R"(# Driver rules that softgpu enforces

Made from `server/softgpu/runtime/rules.def`: `cmake --build --preset dev --target softgpu_rules`.

softgpu is the device that gpupool is tested on. It enforces rules of NVIDIA's driver that programs could otherwise violate unnoticed, so that a design
that would hang or fail on a GPU fails in a test. The setting `SOFTGPU_RULES` changes which rules are enforced:
`SOFTGPU_RULES=-bounded_queues` switches one off, `+` before a name switches one on, `none` switches all off, and commas separate several. cuInit
rejects an unknown name with a list of the rules.

The last column gives the source of the rule. "Believed" marks third-party reports and points that the documentation leaves open; these are to be checked
on a GPU. "H200" precedes what [probes on an H200](gpu/h200-2026-11-27.md) saw.

| Rule | Default | What softgpu does | Source |
| --- | --- | --- | --- |
)";

}  // namespace

std::string rules_page() {
  std::string page = kHead;
  for (const softgpu::RuleRow& row : softgpu::rule_rows()) {
    page.append("| `").append(row.name).append("` | ").append(row.on ? "on" : "off").append(" | ");
    page.append(row.behaviour).append(" | ").append(row.source).append(" |\n");
  }
  page.append("\n## Rules that are always on\n\n| What softgpu does | Source |\n| --- | --- |\n");
  for (const softgpu::FixedRule& rule : softgpu::fixed_rules())
    page.append("| ").append(rule.behaviour).append(" | ").append(rule.source).append(" |\n");
  return page;
}

}  // namespace gpupool::testing
