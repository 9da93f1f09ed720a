#include "scheduler/web/page.h"

#include "scheduler/json/pool_json.h"

namespace gpupool::pool {
namespace {

template <class Number>
Json known(const std::optional<Number>& number) {
  return number ? Json(*number) : Json(nullptr);
}

}  // namespace

std::string page_json(const PoolSnapshot& snapshot, const GpuUtilization& utilization) {
  Json json = json_of(snapshot);
  json["pool"]["compute_milli_used"] = known(utilization.total_milli());
  Json& nodes = json["nodes"];
  for (int i = 0; i < snapshot.nodes_size(); ++i) {
    const NodeState& node = snapshot.nodes(i);
    Json& gpus = nodes[static_cast<size_t>(i)]["gpus"];
    for (int j = 0; j < node.gpus_size(); ++j)
      gpus[static_cast<size_t>(j)]["compute_milli_used"] = known(utilization.milli(node.gpus(j)));
  }
  return json_text(json);
}

}  // namespace gpupool::pool
