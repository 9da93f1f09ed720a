// Tests the allocator of memory pools against a model with the state of each block of 512 bytes.
#include "client/memory/block_pool.h"

#include <algorithm>
#include <map>
#include <random>
#include <span>

#include "tests/support/catch.h"

using namespace gpupool::client;

namespace {

constexpr uint64_t kGranule = 2u << 20, kBlock = BlockPool::kBlock;
constexpr uint64_t kBase = 0x2000'0000'0000;

BlockPool::Test usable_by(uint64_t stream) {
  return [stream](const FreePoint& point) { return point.settled() || point.stream == stream; };
}
const BlockPool::Test kAll = [](const FreePoint&) { return true; };

// A stream may use settled blocks, blocks that it freed itself, and blocks of other streams freed up to a
// known time.
struct Knowledge {
  uint64_t stream = 0;
  std::map<uint64_t, uint64_t> behind;
  bool operator()(const FreePoint& point) const {
    const auto known = behind.find(point.stream);
    return point.settled() || point.stream == stream ||
           (known != behind.end() && point.time <= known->second);
  }
};

class Model {
 public:
  enum class State { free, live };
  struct Cell {
    State state = State::free;
    FreePoint point;
  };
  void add_span(uint64_t address, uint64_t size) { spans_[address].resize(size / kBlock); }
  void allocate(uint64_t address, uint64_t size, const BlockPool::Test& usable) {
    const auto block = cells(address, size);
    REQUIRE(std::all_of(block.begin(), block.end(),
                        [&](const Cell& cell) { return cell.state == State::free && usable(cell.point); }));
    std::fill(block.begin(), block.end(), Cell{State::live, {}});
    live_[address] = size;
  }
  void free(uint64_t address, const FreePoint& point) {
    for (Cell& cell : cells(address, live_.at(address))) cell = {State::free, point};
    live_.erase(address);
  }
  void settle(const BlockPool::Test& done) {
    for (auto& [address, cells] : spans_) {
      for (Cell& cell : cells) {
        if (cell.state == State::free && done(cell.point)) cell.point = {};
      }
    }
  }
  void remove(const BlockPool::Span& span, bool include_unsettled) {
    const auto known = spans_.find(span.address);
    REQUIRE(known != spans_.end());
    REQUIRE(known->second.size() == span.size / kBlock);
    REQUIRE(std::all_of(known->second.begin(), known->second.end(), [&](const Cell& cell) {
      return cell.state == State::free && (include_unsettled || cell.point.settled());
    }));
    spans_.erase(known);
  }
  // The shortest sufficient run of free cells within one span; 0 if there is none.
  uint64_t best_run(uint64_t size, bool small_spans_only) const {
    uint64_t best = 0;
    for (const auto& [address, cells] : spans_) {
      if (small_spans_only && cells.size() * kBlock > BlockPool::kSmallSpan) continue;
      uint64_t run = 0;
      const auto end_run = [&] {
        if (run >= size && (best == 0 || run < best)) best = run;
        run = 0;
      };
      for (const Cell& cell : cells) {
        if (cell.state == State::free)
          run += kBlock;
        else
          end_run();
      }
      end_run();
    }
    return best;
  }
  bool has_free_span() const {
    return std::any_of(spans_.begin(), spans_.end(), [](const auto& span) {
      return std::all_of(span.second.begin(), span.second.end(),
                         [](const Cell& cell) { return cell.state == State::free; });
    });
  }
  uint64_t used() const {
    uint64_t sum = 0;
    for (const auto& [address, size] : live_) sum += size;
    return sum;
  }
  uint64_t reserved() const {
    uint64_t sum = 0;
    for (const auto& [address, cells] : spans_) sum += cells.size() * kBlock;
    return sum;
  }
  const std::map<uint64_t, uint64_t>& live() const { return live_; }

 private:
  std::span<Cell> cells(uint64_t address, uint64_t size) {
    auto span = spans_.upper_bound(address);
    REQUIRE(span != spans_.begin());
    --span;
    const uint64_t first = (address - span->first) / kBlock;
    REQUIRE(address % kBlock == 0);
    REQUIRE(first + size / kBlock <= span->second.size());
    return std::span(span->second).subspan(first, size / kBlock);
  }
  std::map<uint64_t, std::vector<Cell>> spans_;
  std::map<uint64_t, uint64_t> live_;
};

uint64_t rounded(uint64_t bytes) {
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// Performs random operations. With `settled`, every free is settled at once, so that the model knows the best
// fit.
void run_randomly(unsigned seed, bool settled) {
  std::mt19937_64 random(seed);
  BlockPool pool;
  Model model;
  uint64_t next_span = kBase, clock = 0;
  const auto any = [&](uint64_t below) { return random() % below; };
  for (int step = 0; step < 500; ++step) {
    const unsigned kind = static_cast<unsigned>(any(100));
    if (kind < 50) {
      const uint64_t bytes = 1 + (any(2) ? any(64 << 10) : any(5 << 20)), size = rounded(bytes);
      Knowledge knows{1 + any(4), {}};
      for (uint64_t stream = 1; stream <= 4; ++stream) knows.behind[stream] = any(clock + 1);
      const bool small = size <= BlockPool::kSmall;
      const uint64_t used = pool.used();
      if (const auto address = pool.allocate(bytes, std::cref(knows))) {
        model.allocate(*address, size, std::cref(knows));
        CHECK(pool.used() == used + size);
      } else {
        if (settled) CHECK(model.best_run(size, small) == 0);
        const uint64_t whole = (size + kGranule - 1) / kGranule * kGranule;
        pool.add_span({next_span, whole}, bytes);
        model.add_span(next_span, whole);
        model.allocate(next_span, size, kAll);
        next_span += whole;  // adjacent spans are not merged
      }
    } else if (kind < 92 && !model.live().empty()) {
      const auto block = std::next(model.live().begin(), static_cast<long>(any(model.live().size())));
      const uint64_t address = block->first;
      const FreePoint point = settled ? FreePoint{} : FreePoint{1 + any(4), ++clock};
      CHECK_FALSE(pool.free(address + 1, point));
      CHECK(pool.free(address, point));
      CHECK_FALSE(pool.free(address, point));
      model.free(address, point);
    } else if (kind < 96) {
      const Knowledge done{0, {{1 + any(4), any(clock + 1)}}};
      pool.settle(std::cref(done));
      model.settle(std::cref(done));
    } else {
      const bool include_unsettled = any(2) != 0;
      const uint64_t wanted = any(2) ? ~uint64_t{0} : any(8) << 20;
      uint64_t sum = 0;
      for (const auto& span : pool.take_free_spans(wanted, include_unsettled)) {
        CHECK(sum < wanted);
        sum += span.size;
        model.remove(span, include_unsettled);
      }
      if (include_unsettled && sum < wanted) CHECK_FALSE(model.has_free_span());
    }
    CHECK(pool.used() == model.used());
    CHECK(pool.reserved() == model.reserved());
  }
  for (const auto& [address, size] : std::map(model.live())) CHECK(pool.free(address, {}));
  pool.settle(kAll);
  CHECK(pool.used() == 0);
  uint64_t sum = 0;
  for (const auto& span : pool.take_free_spans(~uint64_t{0}, false)) sum += span.size;
  CHECK(sum == model.reserved());  // all blocks have been merged
  CHECK(pool.reserved() == 0);
}

}  // namespace

TEST_CASE("block pool: random operations match the model") {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    run_randomly(seed, seed % 2 == 0);
  }
}

TEST_CASE("block pool: takes and splits the smallest block that fits") {
  BlockPool pool;
  pool.add_span({kBase, 8 * kGranule}, 0);
  pool.add_span({kBase + 16 * kGranule, 4 * kGranule}, 0);
  CHECK(pool.allocate(3 * kGranule, kAll) == kBase + 16 * kGranule);
  CHECK(pool.allocate(kGranule, kAll) == kBase + 19 * kGranule);
  CHECK(pool.allocate(kGranule, kAll) == kBase);
  CHECK(pool.allocate(7 * kGranule + 1, kAll) == std::nullopt);
  CHECK(pool.allocate(7 * kGranule, kAll) == kBase + kGranule);
  CHECK(pool.used() == pool.reserved());
}

TEST_CASE("block pool: small requests do not use large spans") {
  BlockPool pool;
  pool.add_span({kBase, 8 * kGranule}, 0);
  CHECK(pool.allocate(BlockPool::kSmall, kAll) == std::nullopt);
  CHECK(pool.best_fit(BlockPool::kSmall) == std::nullopt);
  pool.add_span({kBase + 8 * kGranule, kGranule}, 100);
  CHECK(pool.allocate(100, kAll) == kBase + 8 * kGranule + kBlock);
  CHECK(pool.allocate(BlockPool::kSmall + 1, kAll) == kBase);
}

TEST_CASE("block pool: a freed block is usable at once by the freeing stream and by others when settled") {
  BlockPool pool;
  pool.add_span({kBase, 4 * kGranule}, 4 * kGranule);
  REQUIRE(pool.free(kBase, {1, 7}));
  CHECK(pool.allocate(4 * kGranule, usable_by(2)) == std::nullopt);
  const auto fit = pool.best_fit(4 * kGranule);
  REQUIRE(fit);
  CHECK(fit->stream == 1);
  CHECK(fit->time == 7);
  SECTION("the same stream") {
    CHECK(pool.allocate(4 * kGranule, usable_by(1)) == kBase);
  }
  SECTION("once settled") {
    pool.settle([](const FreePoint& point) { return point.time <= 7; });
    CHECK(pool.allocate(4 * kGranule, usable_by(2)) == kBase);
  }
}

TEST_CASE("block pool: neighbours freed by two streams merge once they are settled") {
  BlockPool pool;
  pool.add_span({kBase, 4 * kGranule}, 2 * kGranule);
  REQUIRE(pool.allocate(2 * kGranule, kAll) == kBase + 2 * kGranule);
  REQUIRE(pool.free(kBase, {1, 1}));
  REQUIRE(pool.free(kBase + 2 * kGranule, {2, 2}));
  CHECK(pool.allocate(3 * kGranule, kAll) == std::nullopt);
  CHECK(pool.take_free_spans(1, false).empty());
  SECTION("once settled") {
    pool.settle(kAll);
    CHECK(pool.allocate(4 * kGranule, usable_by(3)) == kBase);
  }
  SECTION("before that with unsettled spans included") {
    CHECK(pool.take_free_spans(1, true).size() == 1);
  }
}

TEST_CASE("block pool: a merged block has the later free point of its parts") {
  BlockPool pool;
  pool.add_span({kBase, 4 * kGranule}, 2 * kGranule);
  REQUIRE(pool.allocate(2 * kGranule, kAll));
  REQUIRE(pool.free(kBase, {1, 9}));
  REQUIRE(pool.free(kBase + 2 * kGranule, {1, 4}));
  CHECK(pool.best_fit(4 * kGranule)->time == 9);
}
