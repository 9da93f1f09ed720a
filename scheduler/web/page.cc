#include "scheduler/web/page.h"

#include "scheduler/json/pool_json.h"

extern const char gpupool_page_begin[], gpupool_page_end[];  // page.S

namespace gpupool::pool {

std::string page_html() {
  return {gpupool_page_begin, gpupool_page_end};
}

std::string page_json(const PoolSnapshot& snapshot, const History& history) {
  Json json = json_of(snapshot);
  Json points = Json::array();
  for (const History::Point& point : history.points())
    points.push_back({point.at_ms, point.compute_milli_leased, point.compute_milli, point.waiting});
  json["history"] = std::move(points);
  return json_text(json);
}

}  // namespace gpupool::pool
