#include "client/memory/block_pool.h"

#include <algorithm>
#include <iterator>

namespace gpupool::client {
namespace {

uint64_t round_to_blocks(uint64_t bytes) {
  return (bytes + BlockPool::kBlock - 1) / BlockPool::kBlock * BlockPool::kBlock;
}

}  // namespace

bool BlockPool::may_merge(const Block& one, const Block& other) {
  if (one.span != other.span || !one.is_free || !other.is_free ||
      one.point.settled() != other.point.settled())
    return false;
  return one.point.settled() || one.point.stream == other.point.stream;
}

const BlockPool::Index::value_type* BlockPool::find_fit(uint64_t size, const Test& usable) const {
  for (size_t small = size <= kSmall ? 1 : 0; small <= 1; ++small) {
    for (auto entry = free_[small].lower_bound({size, 0}); entry != free_[small].end(); ++entry) {
      if (usable(entry->second->second.point)) return &*entry;
    }
  }
  return nullptr;
}

std::optional<FreePoint> BlockPool::best_fit(uint64_t bytes) const {
  const auto* const entry = find_fit(round_to_blocks(bytes), [](const FreePoint&) { return true; });
  return entry ? std::optional(entry->second->second.point) : std::nullopt;
}

std::optional<uint64_t> BlockPool::allocate(uint64_t bytes, const Test& usable) {
  const uint64_t size = round_to_blocks(bytes);
  const auto* const entry = size < bytes ? nullptr : find_fit(size, usable);
  if (!entry) return std::nullopt;
  const Blocks::iterator block = entry->second;
  remove_from_index(block);
  take(block, size);
  return block->first;
}

// Turns the first `size` bytes of a free block into a live one. The block must not be in an index.
void BlockPool::take(Blocks::iterator block, uint64_t size) {
  const auto [address, whole] = *block;
  if (whole.size > size) {
    const auto rest = blocks_.emplace_hint(std::next(block), address + size,
                                           Block{whole.size - size, whole.span, true, whole.point});
    add_to_index(rest);
  }
  block->second.size = size;
  block->second.is_free = false;
  if (whole.span->used == 0) --empty_spans_;
  whole.span->used += size;
  used_ += size;
}

void BlockPool::add_span(const Span& span, uint64_t bytes) {
  SpanState& state = spans_[span.address];
  state = {span.size, 0};
  reserved_ += span.size;
  ++empty_spans_;
  const auto block = blocks_.emplace(span.address, Block{span.size, &state, true, {}}).first;
  if (bytes != 0)
    take(block, round_to_blocks(bytes));
  else
    add_to_index(block);
}

bool BlockPool::free(uint64_t address, const FreePoint& point) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.is_free) return false;
  Block& freed = block->second;
  freed.is_free = true;
  freed.point = point;
  used_ -= freed.size;
  freed.span->used -= freed.size;
  if (freed.span->used == 0) ++empty_spans_;
  merge_and_index(block);
  return true;
}

// The block itself must not be in an index; its neighbours are.
void BlockPool::merge_and_index(Blocks::iterator block) {
  const auto absorb = [&](Blocks::iterator first, Blocks::iterator second) {
    first->second.size += second->second.size;
    first->second.point.time = std::max(first->second.point.time, second->second.point.time);
    blocks_.erase(second);
    return first;
  };
  if (const auto next = std::next(block); next != blocks_.end() && may_merge(block->second, next->second)) {
    remove_from_index(next);
    absorb(block, next);
  }
  if (block != blocks_.begin() && may_merge(std::prev(block)->second, block->second)) {
    const auto before = std::prev(block);
    remove_from_index(before);
    block = absorb(before, block);
  }
  add_to_index(block);
}

void BlockPool::settle(const Test& done) {
  if (used_ == reserved_) return;
  std::vector<Blocks::iterator> settled;
  for (const auto& index : free_) {
    for (const auto& [key, block] : index) {
      if (!block->second.point.settled() && done(block->second.point)) settled.push_back(block);
    }
  }
  // Settled blocks merge only with settled ones, so the unsettled blocks still in `settled` remain valid.
  for (const Blocks::iterator block : settled) {
    remove_from_index(block);
    block->second.point = {};
    merge_and_index(block);
  }
}

bool BlockPool::is_settled(const Spans::value_type& span) const {
  const Block& first = blocks_.find(span.first)->second;
  return first.size == span.second.size && first.point.settled();
}

BlockPool::Spans::iterator BlockPool::erase(Spans::iterator span) {
  const auto first = blocks_.find(span->first), last = blocks_.lower_bound(span->first + span->second.size);
  for (auto block = first; block != last; ++block) remove_from_index(block);
  blocks_.erase(first, last);
  reserved_ -= span->second.size;
  --empty_spans_;
  return spans_.erase(span);
}

std::vector<BlockPool::Span> BlockPool::take_free_spans(uint64_t bytes, bool include_unsettled) {
  std::vector<Span> taken;
  uint64_t sum = 0;
  for (auto span = spans_.end(); empty_spans_ != 0 && sum < bytes && span != spans_.begin();) {
    --span;
    if (span->second.used != 0 || (!include_unsettled && !is_settled(*span))) continue;
    sum += span->second.size;
    taken.push_back({span->first, span->second.size});
    span = erase(span);
  }
  return taken;
}

std::vector<BlockPool::Span> BlockPool::spans() const {
  std::vector<Span> all;
  for (const auto& [address, span] : spans_) all.push_back({address, span.size});
  return all;
}

}  // namespace gpupool::client
