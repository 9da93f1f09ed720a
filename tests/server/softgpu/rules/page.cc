#include "tests/server/softgpu/rules/page.h"

#include "server/softgpu/runtime/rules.h"

namespace gpupool::testing {
namespace {

constexpr char kHead[] =
    R"(# Rules that softgpu keeps

Made from `server/softgpu/runtime/rules.def`: `cmake --build --preset ci --target softgpu_rules`.

softgpu is the device that gpupool is tested on, so it keeps the rules of NVIDIA's driver that a program can come to depend on not being there: a
design that would hang or fail on a GPU shall fail in a test. All rules that are on by default are kept unless `SOFTGPU_RULES` says otherwise:
`SOFTGPU_RULES=-bounded_queues` switches one off, `+` before a name switches one on, `none` switches all off, and commas separate several. cuInit
refuses an unknown name with a list of the rules.

The last column says where the rule comes from. "Believed" stands for reports of others, and for what the documentation leaves open: it is to be checked
on a GPU.

| Rule | Default | What softgpu does | Source |
| --- | --- | --- | --- |
)";

}  // namespace

std::string rules_page() {
  std::string page = kHead;
  for (const softgpu::RuleRow& row : softgpu::rule_rows()) {
    page.append("| `").append(row.name).append("` | ").append(row.on ? "on" : "off").append(" | ");
    page.append(row.what).append(" | ").append(row.source).append(" |\n");
  }
  page.append("\n## Kept in any case\n\n| What softgpu does | Source |\n| --- | --- |\n");
  for (const softgpu::FixedRule& rule : softgpu::fixed_rules()) page.append("| ").append(rule.what).append(" | ").append(rule.source).append(" |\n");
  return page;
}

}  // namespace gpupool::testing
