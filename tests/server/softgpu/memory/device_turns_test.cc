#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "server/softgpu/memory/shared_device.h"
#include "tests/server/softgpu/memory/child.h"
#include "tests/server/softgpu/memory/instance.h"

using namespace gpupool::softgpu;

namespace {

// Counters shared by parent and children.
struct Board {
  std::atomic<uint64_t> held;  // nanoseconds for which any process held the turn
  std::atomic<uint64_t> turns, had[4],
      waited[4];  // in turns: all, of each process, and of others while it waited
  std::atomic<bool> go, stop;
};

struct SharedBoard {
  SharedBoard()
      : board(new(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                  Board{}) {}
  ~SharedBoard() { munmap(board, sizeof(Board)); }
  Board* operator->() const { return board; }
  Board* board;
};

uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

// Limit of a single wait's count, in turns: a loaded machine may delay a process for any time.
constexpr uint64_t kMaxWaited = 10;

// Runs "blocks" of about 100 microseconds until the board stops it.
void busy(DeviceTurns& turns, Board& board, int number) {
  while (!board.go) std::this_thread::yield();
  while (!board.stop) {
    const uint64_t before = board.turns;
    turns.acquire();
    board.waited[number] += std::min(board.turns++ - before, kMaxWaited);
    ++board.had[number];
    const uint64_t begin = now();
    do {
      const uint64_t block = now();
      while (now() - block < 100'000) {
      }
    } while (!board.stop && turns.keeps_turn());
    board.held += now() - begin;
    turns.release();
  }
}

}  // namespace

TEST_CASE("a single process keeps the turn and may acquire it recursively") {
  Instance instance;
  auto device = SharedDevice::open(0, kGranule);
  auto& turns = device->turns();
  turns.acquire();
  turns.acquire();
  const uint64_t begin = now();
  while (now() - begin < 3 * DeviceTurns::kSliceNanoseconds) REQUIRE(turns.keeps_turn());
  turns.release();
  turns.release();
}

TEST_CASE("busy processes take turns and share the device evenly") {
  Instance instance;
  SharedBoard board;
  auto device = SharedDevice::open(0, kGranule);
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(std::make_unique<Child>([&, i](Child::Side& side) {
      auto own = SharedDevice::open(0, kGranule);
      side.tell('r');
      busy(own->turns(), *board.board, i);
      return 0;
    }));
  }
  for (auto& child : children) REQUIRE(child->hear() == 'r');
  board->go = true;
  // Enough turns to tolerate a slow moment of the machine.
  constexpr uint64_t kTurns = 30;
  for (const uint64_t begin = now(); now() - begin < 30'000'000'000;) {
    if (board->held >= 1'500'000'000 &&
        std::all_of(board->had, board->had + 3, [](const auto& had) { return had > kTurns; }))
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  board->stop = true;
  for (auto& child : children) CHECK(child->wait() == 0);
  // Two other processes have their turns between two turns of one process. A loaded machine lengthens turns
  // and may delay a process for longer than its turn, which is then skipped.
  for (int i = 0; i < 3; ++i) {
    CHECK(board->had[i] > kTurns);
    CHECK(board->waited[i] <= 3 * board->had[i]);
  }
}

TEST_CASE("a killed process loses its turn") {
  Instance instance;
  auto device = SharedDevice::open(0, kGranule);
  Child child([](Child::Side& side) {
    auto own = SharedDevice::open(0, kGranule);
    own->turns().acquire();
    side.tell('y');
    side.hear();
    return 0;
  });
  REQUIRE(child.hear() == 'y');
  child.kill_now();
  device->turns().acquire();
  CHECK(device->turns().keeps_turn());
  device->turns().release();
}

TEST_CASE("a killed waiter is skipped") {
  Instance instance;
  auto device = SharedDevice::open(0, kGranule);
  auto& turns = device->turns();
  turns.acquire();
  Child waiter([](Child::Side& side) {
    auto own = SharedDevice::open(0, kGranule);
    side.tell('r');
    own->turns().acquire();
    own->turns().release();
    side.tell('g');
    side.hear();
    return 0;
  });
  Child victim([](Child::Side& side) {
    auto own = SharedDevice::open(0, kGranule);
    side.tell('r');
    own->turns().acquire();
    own->turns().release();
    side.tell('g');
    return 0;
  });
  REQUIRE(waiter.hear() == 'r');
  REQUIRE(victim.hear() == 'r');
  // Until another process waits and the time slice is over.
  while (turns.keeps_turn()) std::this_thread::yield();
  victim.kill_now();
  turns.release();
  CHECK(waiter.hear() == 'g');
  turns.acquire();
  turns.release();
}

TEST_CASE("a stopped process loses its turn after a timeout") {
  Instance instance;
  auto device = SharedDevice::open(0, kGranule);
  Child child([](Child::Side& side) {
    auto own = SharedDevice::open(0, kGranule);
    own->turns().acquire();
    side.tell('y');
    side.hear();
    if (own->turns().keeps_turn()) return 1;  // the turn was revoked meanwhile
    own->turns().release();
    own->turns().acquire();
    own->turns().release();
    return 0;
  });
  REQUIRE(child.hear() == 'y');
  child.signal(SIGSTOP);
  device->turns().acquire();
  device->turns().release();
  child.signal(SIGCONT);
  child.tell('.');
  CHECK(child.wait() == 0);
}

TEST_CASE("threads of one process share its turn and release it together") {
  Instance instance;
  SharedBoard board;
  auto device = SharedDevice::open(0, kGranule);
  Child other([&](Child::Side& side) {
    auto own = SharedDevice::open(0, kGranule);
    side.tell('r');
    int turns_had = 0;
    while (!board->stop) {
      own->turns().acquire();
      ++turns_had;
      own->turns().release();
    }
    return turns_had > 3 ? 0 : 1;
  });
  REQUIRE(other.hear() == 'r');
  std::vector<std::thread> threads;
  std::atomic<int> slices{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!board->stop) {
        device->turns().acquire();
        while (!board->stop && device->turns().keeps_turn()) std::this_thread::yield();
        device->turns().release();
        if (slices.fetch_add(1) > 60) board->stop = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(other.wait() == 0);
}
