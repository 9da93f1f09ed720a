#include "scheduler/placement/score_index.h"

#include <algorithm>

namespace gpupool::placement {
namespace {

constexpr uint32_t kBlock = 64;  // nodes; about the square root of how many there are

float judge(const NodeState& node, const Shape& shape, const Policy& policy) {
  return node.fits(shape) ? policy.choose(node, shape).cost : kImpossible;
}

}  // namespace

void ScoreIndex::judge_all(Entry& entry, const Shape& shape, const Policy& policy) const {
  const uint32_t slots = cluster_.slots();
  entry.cost.resize(slots);
  entry.block_least.assign((slots + kBlock - 1) / kBlock, kImpossible);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    // New nodes of one kind stand side by side and are alike until something is placed on them.
    const bool alike = slot > 0 && cluster_.state(slot) == cluster_.state(slot - 1);
    entry.cost[slot] = alike ? entry.cost[slot - 1] : judge(cluster_.state(slot), shape, policy);
    float& least = entry.block_least[slot / kBlock];
    least = std::min(least, entry.cost[slot]);
  }
}

ScoreIndex::Entry& ScoreIndex::refreshed(const Shape& shape, const Policy& policy) {
  auto found = entries_.find(shape);
  if (found == entries_.end()) {
    const size_t each = cluster_.slots() * sizeof(float) + sizeof(Entry);
    while (!entries_.empty() && (entries_.size() + 1) * each > most_bytes_) {
      entries_.erase(recently_.back());
      recently_.pop_back();
    }
    found = entries_.try_emplace(shape).first;
    recently_.push_front(shape);
    found->second.used = recently_.begin();
    judge_all(found->second, shape, policy);
    found->second.change = cluster_.change();
    return found->second;
  }
  Entry& entry = found->second;
  recently_.splice(recently_.begin(), recently_, entry.used);
  const auto changes = cluster_.changes_since(entry.change);
  if (!changes || entry.cost.size() != cluster_.slots()) {
    judge_all(entry, shape, policy);
  } else {
    seen_.resize(cluster_.slots());
    ++refresh_;
    for (const uint32_t slot : *changes) {
      if (seen_[slot] == refresh_) continue;
      seen_[slot] = refresh_;
      const float old = entry.cost[slot], now = judge(cluster_.state(slot), shape, policy);
      entry.cost[slot] = now;
      float& least = entry.block_least[slot / kBlock];
      if (now <= least) {
        least = now;
      } else if (old == least) {
        const auto begin = entry.cost.begin() + slot / kBlock * kBlock;
        least = *std::min_element(begin, begin + std::min<uint32_t>(kBlock, cluster_.slots() - slot / kBlock * kBlock));
      }
    }
  }
  entry.change = cluster_.change();
  return entry;
}

std::optional<uint32_t> ScoreIndex::best(const Shape& shape, const Policy& policy) {
  const Entry& entry = refreshed(shape, policy);
  const auto block = std::min_element(entry.block_least.begin(), entry.block_least.end());
  if (block == entry.block_least.end() || *block == kImpossible) return std::nullopt;
  const auto begin = entry.cost.begin() + (block - entry.block_least.begin()) * kBlock;
  return static_cast<uint32_t>(std::find(begin, entry.cost.end(), *block) - entry.cost.begin());
}

std::optional<uint32_t> ScoreIndex::best(const Shape& shape, const Policy& policy, const std::function<bool(uint32_t)>& allowed) {
  const Entry& entry = refreshed(shape, policy);
  std::optional<uint32_t> best;
  for (uint32_t slot = 0; slot < entry.cost.size(); ++slot) {
    if (entry.cost[slot] < (best ? entry.cost[*best] : kImpossible) && allowed(slot)) best = slot;
  }
  return best;
}

void ScoreIndex::clear() {
  entries_.clear();
  recently_.clear();
}

size_t ScoreIndex::bytes() const {
  size_t sum = seen_.capacity() * sizeof(uint32_t);
  for (const auto& [shape, entry] : entries_) {
    sum += sizeof(Entry) + 2 * sizeof(Shape) + (entry.cost.capacity() + entry.block_least.capacity()) * sizeof(float);
  }
  return sum;
}

}  // namespace gpupool::placement
