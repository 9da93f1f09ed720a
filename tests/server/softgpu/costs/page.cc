#include "tests/server/softgpu/costs/page.h"

#include <cstdio>

#include "server/softgpu/runtime/costs.h"

namespace gpupool::testing {
namespace {

constexpr char kHead[] =
    R"(# Costs of driver calls on softgpu

Made from `server/softgpu/runtime/costs.def`: `cmake --build --preset ci --target softgpu_costs`.

A call that takes 30 us on NVIDIA's driver takes less than one on softgpu, so a benchmark on softgpu does not see a design that makes many of them.
`SOFTGPU_COSTS=h100` makes driver calls as expensive as the table says. `SOFTGPU_COSTS=/path/to/file` takes the costs from a TOML file of lines
`name = microseconds`; costs that it does not name are 0. Without the variable calls take the time that softgpu needs. cuInit refuses an unknown name with
a list of the costs.

A call occupies the calling thread for its cost, beside the time that softgpu itself needs: it spins for up to 50 us and sleeps through more, but for
the last 50 us. It does so inside the call, and holds the context's lock where the table says so, so that other threads block as with the rules
of [softgpu-rules.md](softgpu-rules.md). Calls that fail, calls on a stream that is being captured, and calls that the table does not name cost nothing. A
wait for the device costs the waiting thread its wake-up. Costs are the caller's: what the device needs for a copy or a kernel does not change.

The last column says where the number of `h100` comes from. Few were measured on an H100; "estimate" stands for no measurement at all. All are to be measured
on a GPU.

| Cost | Unit | h100, us | What is charged | Source |
| --- | --- | ---: | --- | --- |
)";

const char* name_of(softgpu::CostUnit unit) {
  return unit == softgpu::CostUnit::call ? "call" : unit == softgpu::CostUnit::mib ? "MiB" : "node";
}

}  // namespace

std::string costs_page() {
  std::string page = kHead;
  for (const softgpu::CostRow& row : softgpu::cost_rows()) {
    char number[32];
    std::snprintf(number, sizeof number, "%.10g", row.h100);
    page.append("| `").append(row.name).append("` | ").append(name_of(row.unit)).append(" | ").append(number).append(" | ");
    page.append(row.meaning).append(" | ").append(row.source).append(" |\n");
  }
  return page;
}

}  // namespace gpupool::testing
