#include "scheduler/web/events.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace gpupool::pool {
namespace {

bool is_left_out(std::string_view name) {
  constexpr std::array<std::string_view, 3> kLeftOut{"lease_granted", "lease_ending", "lease_gone"};
  return std::find(kLeftOut.begin(), kLeftOut.end(), name) != kLeftOut.end();
}

bool has_field(const Events::Fields& fields, std::string_view key) {
  return std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.first == key; });
}

}  // namespace

void Events::note(int64_t at_ms, const std::string& name, Fields fields) {
  const bool of_lease = has_field(fields, "lease");
  if (is_left_out(name) || (!of_lease && !has_field(fields, "node"))) return;
  for (auto& [key, value] : fields) {
    if (value.size() > kLongestText) value.resize(kLongestText);
  }
  std::deque<Event>& events = of_lease ? leases_ : nodes_;
  events.push_back({at_ms, name, std::move(fields)});
  if (events.size() > kMost) events.pop_front();
}

Json Events::json_of(const Event& event) {
  Json json{{"at_ms", event.at_ms}, {"event", event.name}};
  for (const auto& [key, value] : event.fields) {
    if (!json.contains(key)) json[key] = value;
  }
  return json;
}

Json Events::json() const {
  Json list = Json::array();
  for (const std::deque<Event>* const events : {&leases_, &nodes_}) {
    for (const Event& event : *events) list.push_back(json_of(event));
  }
  std::stable_sort(list.begin(), list.end(), [](const Json& a, const Json& b) {
    return a["at_ms"].get<int64_t>() < b["at_ms"].get<int64_t>();
  });
  return list;
}

}  // namespace gpupool::pool
