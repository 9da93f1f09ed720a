#include "scheduler/web/history.h"

#include <algorithm>

namespace gpupool::pool {

History::Point History::mean(const Sums& sums) {
  Point point{.begin_ms = sums.begin_ms,
              .end_ms = sums.end_ms,
              .compute_milli = sums.compute_milli / sums.samples,
              .compute_milli_leased = sums.leased / sums.samples,
              .waiting = sums.waiting / sums.samples};
  if (sums.used_samples > 0) point.compute_milli_used = sums.used / sums.used_samples;
  for (const auto& [name, milli] : sums.tenants) point.tenants.emplace_back(name, milli / sums.samples);
  std::stable_sort(point.tenants.begin(), point.tenants.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  while (point.tenants.size() > kMostTenants) {
    point.others_milli += point.tenants.back().second;
    point.tenants.pop_back();
  }
  return point;
}

void History::close() {
  if (sums_.samples > 0) points_.push_back(mean(sums_));
  sums_ = {};
}

void History::note(const PoolSnapshot& snapshot, std::optional<uint64_t> used_milli) {
  const int64_t now = snapshot.taken_ms();
  const bool is_set_back = now < sampled_ms_;  // the clock
  if (!is_set_back && sampled_ms_ != 0 && now < sampled_ms_ + kSampleMs) return;
  if (is_set_back) {
    sums_ = {};
    while (!points_.empty() && points_.back().end_ms > now) points_.pop_back();
  }
  // After a pause, in which this scheduler did not lead, a new point begins.
  if (sums_.samples > 0 && (now >= sums_.begin_ms + kPointMs || now > sampled_ms_ + 3 * kSampleMs)) close();
  while (!points_.empty() && points_.front().end_ms <= now - kKeptMs) points_.pop_front();
  if (sums_.samples == 0) sums_.begin_ms = now;
  sampled_ms_ = now;
  sums_.end_ms = now + kSampleMs;
  ++sums_.samples;
  sums_.compute_milli += snapshot.pool().compute_milli();
  sums_.leased += snapshot.pool().compute_milli_leased();
  sums_.waiting += snapshot.pool().waiting();
  if (used_milli) {
    sums_.used += *used_milli;
    ++sums_.used_samples;
  }
  for (const TenantState& tenant : snapshot.tenants()) {
    if (tenant.compute_milli() > 0) sums_.tenants[tenant.name()] += tenant.compute_milli();
  }
}

std::vector<History::Point> History::points() const {
  std::vector<Point> all(points_.begin(), points_.end());
  if (sums_.samples > 0) all.push_back(mean(sums_));
  return all;
}

Json History::json() const {
  std::map<std::string, size_t> indices;
  Json tenants = Json::array(), points = Json::array();
  const std::vector<Point> all = this->points();
  for (const Point& point : all) {
    Json shares = Json::array();
    for (const auto& [name, milli] : point.tenants) {
      const auto [place, is_new] = indices.emplace(name, indices.size());
      if (is_new) tenants.push_back(name);
      shares.push_back({place->second, milli});
    }
    Json used = point.compute_milli_used ? Json(*point.compute_milli_used) : Json(nullptr);
    points.push_back(
        Json::array({point.begin_ms, point.end_ms, point.compute_milli, point.compute_milli_leased,
                     std::move(used), point.waiting, std::move(shares), point.others_milli}));
  }
  return {{"kept_ms", kKeptMs},
          {"begun_ms", all.empty() ? Json(nullptr) : Json(all.front().begin_ms)},
          {"tenants", std::move(tenants)},
          {"points", std::move(points)}};
}

}  // namespace gpupool::pool
