#include "tests/server/softgpu/costs/page.h"

#include <cstdio>

#include "server/softgpu/runtime/costs.h"

namespace gpupool::testing {
namespace {

constexpr char kHead[] =
    R"(# Costs of driver calls on softgpu

Made from `server/softgpu/runtime/costs.def`: `cmake --build --preset dev --target softgpu_costs`.

A call that takes 30 us on NVIDIA's driver takes less than 1 us on softgpu, so a benchmark on softgpu does not expose a design that makes many of these calls.
`SOFTGPU_COSTS=h100` gives driver calls the costs of the table. `SOFTGPU_COSTS=/path/to/file` reads the costs from a TOML file with lines
`name = microseconds`; costs that the file does not name are 0. Without the variable, calls take only the time that softgpu needs. cuInit rejects an unknown
name with a list of the costs.

A call occupies the calling thread for its cost, in addition to the time that softgpu needs: the thread spins for up to 50 us; for longer costs it sleeps and
spins only the last 50 us. This happens inside the call, and with the context's lock held where the table says so, so other threads block as described in
[softgpu-rules.md](softgpu-rules.md). Failing calls, calls on a stream that is being captured, and calls that are not in the table cost nothing. A wait for the
device costs the waiting thread its wake-up. Costs are charged to the caller: the time that the device needs for a copy or a kernel does not change.

The last column gives the source of the `h100` value. Few values were measured on an H100; "estimate" means that nothing was measured. All are to be measured
on a GPU; [a report](gpu/h200-2026-11-27.md#what-the-driver-does) has what some calls took on an H200.

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
    page.append("| `")
        .append(row.name)
        .append("` | ")
        .append(name_of(row.unit))
        .append(" | ")
        .append(number)
        .append(" | ");
    page.append(row.meaning).append(" | ").append(row.source).append(" |\n");
  }
  return page;
}

}  // namespace gpupool::testing
