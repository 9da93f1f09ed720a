// Fuzzes the parser of pool-sim's CSV files, which an operator writes: trusted, but possibly malformed.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "scheduler/placement/cluster.h"
#include "scheduler/sim/trace.h"

using namespace gpupool;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto csv = sim::Csv::parse("f", {reinterpret_cast<const char*>(data), size});
  if (!csv) {
    if (!csv.error().message.starts_with("f:")) __builtin_trap();
    return 0;
  }
  if (const auto nodes = sim::nodes_of(*csv)) {
    placement::Cluster cluster;
    size_t added = 0;
    for (const placement::NodeSpec& node : *nodes) added += cluster.add(node).ok();
    if (cluster.size() != added) __builtin_trap();
  }
  if (const auto tasks = sim::tasks_of(*csv)) {
    for (const sim::Task& task : *tasks) {
      const placement::Request pooled = sim::in_mode(task.request, sim::Mode::pool);
      if (pooled.cpu_milli != 0 || pooled.gpus != task.request.gpus) __builtin_trap();
      if (task.runs < 0 || task.milli() < 0 || task.milli() > 0xffff * 1000) __builtin_trap();
    }
  }
  return 0;
}
