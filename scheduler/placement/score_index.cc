#include "scheduler/placement/score_index.h"

#include <algorithm>

namespace gpupool::placement {
namespace {

constexpr uint32_t kBlock = 64;  // nodes; about the square root of the number of nodes in a large pool
// Limit of nodes recomputed by one query in addition to changed ones; takes about 0.25 ms.
constexpr uint32_t kRenewed = 16 * kBlock;
constexpr size_t kJudgedOfSome = 512;

float judge(const NodeState& node, const Shape& shape, const Policy& policy) {
  return node.fits(shape) ? policy.choose(node, shape).cost : kImpossible;
}

}  // namespace

// Recomputes the costs of the slots from `begin` to `end`. `begin` must be the start of a block, `end` the
// end of a block or of all slots.
void ScoreIndex::judge_range(Entry& entry, const Shape& shape, const Policy& policy, uint32_t begin,
                             uint32_t end) const {
  std::fill(entry.block_least.begin() + begin / kBlock,
            entry.block_least.begin() + (end + kBlock - 1) / kBlock, kImpossible);
  for (uint32_t slot = begin; slot < end; ++slot) {
    // Nodes of one kind are often added together and have equal states until something is placed on them.
    const bool alike = slot > begin && cluster_.state(slot) == cluster_.state(slot - 1);
    entry.cost[slot] = alike ? entry.cost[slot - 1] : judge(cluster_.state(slot), shape, policy);
    float& least = entry.block_least[slot / kBlock];
    least = std::min(least, entry.cost[slot]);
  }
}

void ScoreIndex::judge_all(Entry& entry, const Shape& shape, const Policy& policy) const {
  const uint32_t slots = cluster_.slots();
  entry.cost.resize(slots);
  entry.block_least.resize((slots + kBlock - 1) / kBlock);
  judge_range(entry, shape, policy, 0, slots);
  entry.epoch = epoch_;
  entry.renewed = slots;
}

// Returns true if the shape may be cached, after evicting least recently used shapes as needed.
bool ScoreIndex::admit_to_cache(const Shape& shape) {
  const size_t each = cluster_.slots() * sizeof(float) + sizeof(Entry);
  if ((entries_.size() + 1) * each > most_bytes_) {
    const size_t hash = ShapeHash()(shape);
    size_t& newcomer = recently_rejected_[hash % recently_rejected_.size()];
    if (newcomer != hash) {
      newcomer = hash;
      return false;
    }
  }
  while (!entries_.empty() && (entries_.size() + 1) * each > most_bytes_) {
    entries_.erase(recently_.back());
    recently_.pop_back();
  }
  return true;
}

ScoreIndex::Entry& ScoreIndex::entry_for(const Shape& shape, const Policy& policy) {
  auto found = entries_.find(shape);
  if (found == entries_.end()) {
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
        least = *std::min_element(
            begin, begin + std::min<uint32_t>(kBlock, cluster_.slots() - slot / kBlock * kBlock));
      }
    }
  }
  entry.change = cluster_.change();
  if (entry.epoch != epoch_) {
    entry.epoch = epoch_;
    entry.renewed = 0;
  }
  if (entry.renewed < cluster_.slots()) {
    const uint32_t end = std::min(entry.renewed + kRenewed, cluster_.slots());
    judge_range(entry, shape, policy, entry.renewed, end);
    entry.renewed = end;
  }
  return entry;
}

std::optional<uint32_t> ScoreIndex::best(const Shape& shape, const Policy& policy, const Allowed& allowed) {
  if (!entries_.contains(shape) && !admit_to_cache(shape)) return best_of_some(shape, policy, allowed);
  const Entry& entry = entry_for(shape, policy);
  if (allowed) {
    std::optional<uint32_t> best;
    for (uint32_t slot = 0; slot < entry.cost.size(); ++slot) {
      if (entry.cost[slot] < (best ? entry.cost[*best] : kImpossible) && allowed(slot)) best = slot;
    }
    return best;
  }
  const auto block = std::min_element(entry.block_least.begin(), entry.block_least.end());
  if (block == entry.block_least.end() || *block == kImpossible) return std::nullopt;
  const auto begin = entry.cost.begin() + (block - entry.block_least.begin()) * kBlock;
  return static_cast<uint32_t>(std::find(begin, entry.cost.end(), *block) - entry.cost.begin());
}

std::optional<uint32_t> ScoreIndex::best_of_some(const Shape& shape, const Policy& policy,
                                                 const Allowed& allowed) {
  fitting_.clear();
  for (uint32_t slot = 0; slot < cluster_.slots(); ++slot) {
    if (cluster_.state(slot).fits(shape) && (!allowed || allowed(slot))) fitting_.push_back(slot);
  }
  std::optional<uint32_t> best;
  float least = kImpossible;
  const size_t step = (fitting_.size() + kJudgedOfSome - 1) / kJudgedOfSome;
  for (size_t i = 0; i < fitting_.size(); i += step) {
    const float cost = policy.choose(cluster_.state(fitting_[i]), shape).cost;
    if (cost < least) {
      least = cost;
      best = fitting_[i];
    }
  }
  return best;
}

size_t ScoreIndex::bytes() const {
  size_t sum = (seen_.capacity() + fitting_.capacity()) * sizeof(uint32_t);
  for (const auto& [shape, entry] : entries_) {
    sum += sizeof(Entry) + 2 * sizeof(Shape) +
           (entry.cost.capacity() + entry.block_least.capacity()) * sizeof(float);
  }
  return sum;
}

}  // namespace gpupool::placement
