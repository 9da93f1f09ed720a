// Best-fit allocator with splitting and coalescing over spans of mapped device memory, for stream-ordered
// allocation.
//
// Each freed block carries a FreePoint; the caller decides which points the allocating stream is ordered
// behind. Adjacent free blocks of a span merge if the same stream freed them or if both are settled. Requests
// up to kSmall are served from small spans only, so that they do not keep large spans from being released. A
// pure data structure, used by PoolMemory under its mutex: no lock of its own, no calls to the server.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace gpupool::client {

// A position in a stream: all work that `stream` was given before `time` (the clock of StreamOrder).
struct FreePoint {
  uint64_t stream = 0;
  uint64_t time = 0;  // 0: settled, i.e. no remaining work uses the block
  bool settled() const { return time == 0; }
};

class BlockPool {
 public:
  using Test = std::function<bool(const FreePoint&)>;
  struct Span {
    uint64_t address = 0, size = 0;
  };
  static constexpr uint64_t kBlock = 512;       // bytes; sizes and addresses of blocks are multiples of it
  static constexpr uint64_t kSmall = 1u << 20;  // bytes
  static constexpr uint64_t kSmallSpan = 2u << 20;

  // Takes the smallest free block that is large enough and whose point passes `usable`.
  std::optional<uint64_t> allocate(uint64_t bytes, const Test& usable);
  // Returns the point of the block that allocate() would take if all points were usable.
  std::optional<FreePoint> best_fit(uint64_t bytes) const;
  // Adds a span whose first `bytes` are allocated; 0: all of it is free.
  void add_span(const Span& span, uint64_t bytes);
  // Returns false if no live block starts at `address`.
  bool free(uint64_t address, const FreePoint& point);
  // Marks the free blocks whose points pass `done` as settled.
  void settle(const Test& done);
  // Removes spans without live blocks until their sizes add up to `bytes`. Spans with unsettled blocks are
  // removed only if `include_unsettled`.
  std::vector<Span> take_free_spans(uint64_t bytes, bool include_unsettled);
  std::vector<Span> spans() const;

  uint64_t used() const { return used_; }          // bytes of live blocks
  uint64_t reserved() const { return reserved_; }  // bytes of spans

 private:
  struct SpanState {
    uint64_t size = 0, used = 0;
  };
  struct Block {
    uint64_t size = 0;
    SpanState* span = nullptr;
    bool is_free = false;
    FreePoint point;
  };
  using Blocks = std::map<uint64_t, Block>;
  using Spans = std::map<uint64_t, SpanState>;
  using Index = std::map<std::pair<uint64_t, uint64_t>, Blocks::iterator>;  // key: size and address

  static bool may_merge(const Block& one, const Block& other);
  Index& index_of(const Block& block) { return free_[block.span->size <= kSmallSpan]; }
  void add_to_index(Blocks::iterator block) {
    index_of(block->second).emplace(std::pair(block->second.size, block->first), block);
  }
  void remove_from_index(Blocks::iterator block) {
    index_of(block->second).erase({block->second.size, block->first});
  }
  // Returns null if no block fits.
  const Index::value_type* find_fit(uint64_t size, const Test& usable) const;
  void merge_and_index(Blocks::iterator block);
  void take(Blocks::iterator block, uint64_t size);
  bool is_settled(const Spans::value_type& span) const;
  Spans::iterator erase(Spans::iterator span);

  Blocks blocks_;  // by address; together they cover all spans
  Spans spans_;    // by address
  Index free_[2];  // free blocks: [0] in large spans, [1] in small spans
  uint64_t used_ = 0, reserved_ = 0;
  size_t empty_spans_ = 0;  // spans without a live block
};

}  // namespace gpupool::client
