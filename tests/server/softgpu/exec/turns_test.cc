// Tests how the executor takes and returns the device's turns.
#include <sys/mman.h>

#include <mutex>
#include <thread>

#include "server/softgpu/memory/shared_device.h"
#include "tests/server/softgpu/exec/run_grid.h"
#include "tests/server/softgpu/memory/child.h"
#include "tests/server/softgpu/memory/instance.h"
#include "tests/support/processes.h"

using namespace softgpu_test;

namespace {

// Counts calls, and reports after every third query that the time slice is over.
class FakeTurns final : public DeviceTurns {
 public:
  void acquire() override {
    std::lock_guard lock(mutex_);
    ++held_;
    ++acquired;
  }
  void release() override {
    std::lock_guard lock(mutex_);
    if (--held_ < 0) ++mistakes;
  }
  bool keeps_turn() override {
    std::lock_guard lock(mutex_);
    if (held_ == 0) ++mistakes;
    return ++looks_ % 3 != 0;
  }
  int held() {
    std::lock_guard lock(mutex_);
    return held_;
  }
  int acquired = 0, mistakes = 0;

 private:
  std::mutex mutex_;
  int held_ = 0, looks_ = 0;
};

struct Params {
  FakeTurns* turns;
  std::atomic<uint32_t>* without;
};

void look_kernel(ThreadContext* t) {
  auto& p = params<Params>(t);
  if (p.turns->held() == 0) p.without->fetch_add(1);
}

struct BusyParams {
  std::atomic<uint64_t>* work;
};

// A block that computes for about 50 microseconds.
void busy_kernel(ThreadContext* t) {
  volatile uint64_t sum = 0;
  for (int i = 0; i < 50'000; ++i) sum = sum + static_cast<uint64_t>(i);
  params<BusyParams>(t).work->fetch_add(1);
}

}  // namespace

// Must run first, while this process has no other threads, because it forks.
TEST_CASE("two busy processes of one device both make progress") {
  Instance instance;
  auto device = SharedDevice::open(0, kGranule);
  struct Board {
    std::atomic<bool> go, stop;
    std::atomic<uint64_t> busy[2];
  };
  auto* board =
      new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board{};
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 2; ++i) {
    children.push_back(std::make_unique<Child>([&, i](Child::Side& side) {
      auto own_device = SharedDevice::open(0, kGranule);
      Buffer<std::atomic<uint64_t>> work(1);
      auto own = GridExecutor::create(2, &own_device->turns());
      side.tell('r');
      side.hear();
      while (!board->stop) {
        const GridResult result = run(*own, request(busy_kernel, 100, 1, BusyParams{work.data()}));
        if (result.fault != FaultKind::none) return 1;
        if (!board->stop) board->busy[i] += result.busy_nanoseconds;
      }
      return 0;
    }));
  }
  for (auto& child : children) REQUIRE(child->hear() == 'r');
  for (auto& child : children) child->tell('g');
  constexpr uint64_t kBusy = 200'000'000;  // nanoseconds of device time
  CHECK(gpupool::testing::eventually([&] { return board->busy[0] > kBusy && board->busy[1] > kBusy; }));
  board->stop = true;
  for (auto& child : children) CHECK(child->wait() == 0);
  munmap(board, sizeof(Board));
}

TEST_CASE("blocks run only while the process holds the turn, and an idle executor gives it up") {
  FakeTurns turns;
  Buffer<std::atomic<uint32_t>> without(1);
  {
    auto own = GridExecutor::create(2, &turns);
    for (int i = 0; i < 20; ++i) {
      REQUIRE(run(*own, request(look_kernel, 50, 1, Params{&turns, without.data()})).fault ==
              FaultKind::none);
    }
  }
  CHECK(without[0] == 0);
  CHECK(turns.mistakes == 0);
  CHECK(turns.held() == 0);
  CHECK(turns.acquired > 20);
}

TEST_CASE("grids on their own multiprocessors run without the turn") {
  FakeTurns turns;
  Buffer<std::atomic<uint32_t>> without(1);
  Multiprocessors first;
  first.set(0);
  {
    auto own = GridExecutor::create(2, &turns);
    for (int i = 0; i < 20; ++i) {
      GridRequest r = request(look_kernel, 50, 1, Params{&turns, without.data()});
      r.multiprocessors = std::make_shared<const Multiprocessors>(first);
      const GridResult result = run(*own, std::move(r));
      REQUIRE(result.fault == FaultKind::none);
      CHECK(result.busy_nanoseconds > 0);
    }
  }
  CHECK(without[0] == 20 * 50);
  CHECK(turns.acquired == 0);
}
