// Tests grids that may run on some of the executor's threads only.
#include <unistd.h>

#include <latch>
#include <set>

#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

using Word = std::atomic<uint32_t>;

struct WordsParams {
  Word* words;
};

// Records the host thread that runs the block.
void who_kernel(ThreadContext* t) {
  volatile uint64_t sum = 0;
  for (int i = 0; i < 20'000; ++i) sum = sum + static_cast<uint64_t>(i);
  params<WordsParams>(t).words[t->block->block_idx[0]].store(static_cast<uint32_t>(gettid()));
}

void endless_kernel(ThreadContext* t) {
  auto& p = params<WordsParams>(t);
  p.words[1].store(static_cast<uint32_t>(gettid()));
  while (p.words[0].load() == 0) {
  }
}

// Two blocks that wait for each other without yielding: they end only if two threads run them.
void pair_kernel(ThreadContext* t) {
  auto& p = params<WordsParams>(t);
  p.words[0].fetch_add(1);
  while (p.words[0].load() < 2) {
  }
}

// Every block waits for all others, which ends only if all are on the device at once.
void meet_kernel(ThreadContext* t) {
  auto& p = params<WordsParams>(t);
  p.words[0].fetch_add(1);
  while (p.words[0].load() < t->block->grid_dim[0]) softgpu_yield(t);
}

GridRequest on(std::initializer_list<size_t> which, GridRequest r) {
  Multiprocessors set;
  for (const size_t one : which) set.set(one);
  r.multiprocessors = std::make_shared<const Multiprocessors>(set);
  return r;
}

std::set<uint32_t> seen(const Buffer<Word>& words) {
  std::set<uint32_t> all;
  for (size_t i = 0; i < words.size(); ++i) all.insert(words[i].load());
  return all;
}

constexpr uint32_t kBlocks = 400 / kLess;

}  // namespace

TEST_CASE("a grid runs only on its multiprocessors") {
  auto own = GridExecutor::create(4, nullptr);
  Buffer<Word> two(kBlocks), other(kBlocks);
  std::set<uint32_t> here, there;
  for (int round = 0; round < 5; ++round) {
    auto first = submit(*own, on({1, 2}, request(who_kernel, kBlocks, 1, WordsParams{two.data()})));
    auto second = submit(*own, on({3}, request(who_kernel, kBlocks, 1, WordsParams{other.data()})));
    REQUIRE(first.get().fault == FaultKind::none);
    REQUIRE(second.get().fault == FaultKind::none);
    here.merge(seen(two));
    there.merge(seen(other));
  }
  CHECK(here.size() <= 2);
  CHECK(there.size() == 1);
  CHECK(!here.contains(*there.begin()));
  CHECK(!here.contains(0));
}

TEST_CASE("a grid runs on all of its multiprocessors") {
  auto own = GridExecutor::create(4, nullptr);
  Buffer<Word> words(1);
  CHECK(run(*own, on({0, 3}, request(pair_kernel, 2, 1, WordsParams{words.data()}))).fault ==
        FaultKind::none);
}

TEST_CASE("an endless grid does not block grids on other multiprocessors") {
  auto own = GridExecutor::create(3, nullptr);
  Buffer<Word> flag(2), words(kBlocks), everywhere(kBlocks);
  auto endless = submit(*own, on({1}, request(endless_kernel, 1, 1, WordsParams{flag.data()})));
  auto behind = submit(*own, on({1}, request(who_kernel, 1, 1, WordsParams{words.data()})));
  REQUIRE(run(*own, on({0}, request(who_kernel, kBlocks, 1, WordsParams{words.data()}))).fault ==
          FaultKind::none);
  // A grid without multiprocessors of its own uses those that are free.
  REQUIRE(run(*own, request(who_kernel, kBlocks, 1, WordsParams{everywhere.data()})).fault ==
          FaultKind::none);
  CHECK(behind.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  CHECK(!seen(words).contains(flag[1].load()));
  CHECK(!seen(everywhere).contains(flag[1].load()));
  flag[0] = 1;
  CHECK(endless.get().fault == FaultKind::none);
  CHECK(behind.get().fault == FaultKind::none);
}

TEST_CASE("blocks of a cooperative grid synchronise on one multiprocessor") {
  auto own = GridExecutor::create(3, nullptr);
  Buffer<Word> words(1);
  GridRequest r = on({2}, request(meet_kernel, 20, 1, WordsParams{words.data()}));
  r.cooperative = true;
  CHECK(run(*own, std::move(r)).fault == FaultKind::none);
  CHECK(words[0] == 20);
}

// Uses more threads than a futex bitset has bits. Each grid is submitted at the end of the previous one, by a
// thread that may not run it.
TEST_CASE("submitting a grid wakes a worker that may run it") {
  constexpr unsigned kThreads = 40;
  auto own = GridExecutor::create(kThreads, nullptr);
  Buffer<Word> words(kThreads);
  std::latch done(kThreads);
  std::function<void(unsigned)> start = [&](unsigned i) {
    own->submit(on({i}, request(who_kernel, 1, 1, WordsParams{&words[i]})), [&, i](GridResult result) {
      if (result.fault == FaultKind::none && i + 1 < kThreads) start(i + 1);
      done.count_down();
    });
  };
  start(0);
  done.wait();
  CHECK(seen(words).size() == kThreads);
}

TEST_CASE("rejects a grid on multiprocessors that do not exist") {
  Buffer<Word> words(1);
  CHECK(run(executor(), on({7}, request(who_kernel, 1, 1, WordsParams{words.data()}))).fault !=
        FaultKind::none);
}
