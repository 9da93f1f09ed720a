#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "server/softgpu/memory/address_space.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

namespace {

// Addresses for one mapping, unmapped and freed at the end.
struct ReservedRange {
  explicit ReservedRange(uint64_t bytes) : size(bytes), address(*allocate_addresses(bytes, kGranule, 0)) {}
  ~ReservedRange() {
    unmap_memory(address, size);
    free_addresses(address, size);
  }
  char& operator[](uint64_t offset) const { return *reinterpret_cast<char*>(address + offset); }
  uint64_t size, address;
};

struct sigaction previous_action;
void retry_moves(int number, siginfo_t* info, void*) {
  if (wait_for_move(reinterpret_cast<uint64_t>(info->si_addr))) return;
  sigaction(number, &previous_action, nullptr);
}

}  // namespace

TEST_CASE("a Memory is zeroed, keeps its content between mappings, and is released with its last mapping") {
  int released = 0;
  auto memory = create_memory(2 * kGranule, [&] { ++released; });
  ReservedRange first(2 * kGranule), second(2 * kGranule);
  REQUIRE(map_memory(memory, 0, first.address, 2 * kGranule));
  CHECK(first[0] == 0);
  CHECK(first[2 * kGranule - 1] == 0);
  first[5] = 'x';
  first[kGranule + 7] = 'y';
  uint64_t offset = 0;
  CHECK(memory_at(first.address + kGranule, &offset) == memory);
  CHECK(offset == kGranule);
  CHECK_FALSE(free_addresses(first.address, first.size));  // still mapped

  REQUIRE(unmap_memory(first.address, first.size));
  CHECK(memory_at(first.address, nullptr) == nullptr);
  REQUIRE(map_memory(memory, 0, second.address, 2 * kGranule));
  CHECK(second[5] == 'x');
  CHECK(second[kGranule + 7] == 'y');

  memory.reset();
  CHECK(released == 0);
  REQUIRE(unmap_memory(second.address, second.size));
  CHECK(released == 1);
}

TEST_CASE("a Memory mapped at several addresses is the same memory at each") {
  auto memory = create_memory(2 * kGranule, nullptr);
  ReservedRange first(2 * kGranule), second(2 * kGranule), half(kGranule);
  REQUIRE(map_memory(memory, 0, first.address, first.size));
  first[3] = 'a';
  first[kGranule] = 'b';
  REQUIRE(map_memory(memory, 0, second.address, second.size));
  CHECK(first[3] == 'a');
  CHECK(second[3] == 'a');
  second[3] = 'c';
  CHECK(first[3] == 'c');
  REQUIRE(map_memory(memory, kGranule, half.address, half.size));
  CHECK(half[0] == 'b');
  half[1] = 'd';
  CHECK(first[kGranule + 1] == 'd');
  REQUIRE(unmap_memory(first.address, first.size));
  CHECK(second[kGranule + 1] == 'd');
  REQUIRE(map_memory(memory, 0, first.address, first.size));
  CHECK(first[3] == 'c');
}

TEST_CASE("a parked Memory can be mapped in parts") {
  auto memory = create_memory(2 * kGranule, nullptr);
  ReservedRange first(2 * kGranule), half(kGranule);
  REQUIRE(map_memory(memory, 0, first.address, first.size));
  first[kGranule + 9] = 'z';
  REQUIRE(unmap_memory(first.address, first.size));
  REQUIRE(map_memory(memory, kGranule, half.address, half.size));
  CHECK(half[9] == 'z');
}

TEST_CASE("rejects invalid mappings") {
  auto memory = create_memory(kGranule, nullptr);
  ReservedRange range(2 * kGranule);
  CHECK_FALSE(map_memory(memory, 0, range.address, 2 * kGranule));
  CHECK_FALSE(map_memory(memory, 1, range.address, page_bytes()));
  CHECK_FALSE(map_memory(memory, 0, range.address + 1, page_bytes()));
  CHECK_FALSE(map_memory(memory, UINT64_MAX - page_bytes() + 1, range.address, page_bytes()));
  CHECK_FALSE(map_memory(memory, 0, 0x10000, kGranule));
  CHECK_FALSE(map_memory(nullptr, 0, range.address, kGranule));
  CHECK_FALSE(map_memory(memory, 0, kRangeBase + kRangeSize - kGranule, kGranule));  // not allocated
  REQUIRE(map_memory(memory, 0, range.address, kGranule));
  CHECK_FALSE(map_memory(memory, 0, range.address, kGranule));
  CHECK_FALSE(unmap_memory(range.address, page_bytes()));
  CHECK_FALSE(unmap_memory(range.address, 2 * kGranule));
  CHECK_FALSE(protect_memory(range.address, page_bytes(), true, false));
  CHECK(is_accessible(range.address, kGranule, Access::read_write));
  CHECK_FALSE(is_accessible(range.address, kGranule + 1, Access::read));
  REQUIRE(protect_memory(range.address, kGranule, true, false));
  CHECK(is_accessible(range.address, kGranule, Access::read));
  CHECK_FALSE(is_accessible(range.address, kGranule, Access::read_write));
  REQUIRE(protect_memory(range.address, kGranule, false, false));
  CHECK_FALSE(is_accessible(range.address, 1, Access::read));

  auto other = create_memory(kGranule, nullptr);
  REQUIRE(map_memory(other, 0, range.address + kGranule, kGranule));
  REQUIRE(protect_memory(range.address, 2 * kGranule, true, true));
  CHECK(is_accessible(range.address + 5, 2 * kGranule - 5, Access::read_write));
  REQUIRE(unmap_memory(range.address, 2 * kGranule));
  CHECK(create_memory(0, nullptr) == nullptr);
  CHECK(create_memory(UINT64_MAX, nullptr) == nullptr);
}

TEST_CASE("access rights survive the move of a Memory to a second mapping") {
  auto memory = create_memory(kGranule, nullptr);
  ReservedRange first(kGranule), second(kGranule);
  REQUIRE(map_memory(memory, 0, first.address, kGranule, Access::none));
  REQUIRE(map_memory(memory, 0, second.address, kGranule));
  second[0] = 'q';
  REQUIRE(protect_memory(first.address, kGranule, true, false));
  CHECK(first[0] == 'q');
}

// Stands for a kernel's code, which ThreadSanitizer does not instrument either; the move orders it by page
// protection.
__attribute__((no_sanitize("thread"))) static void add_one(uint64_t address) {
  __atomic_fetch_add(reinterpret_cast<uint64_t*>(address), 1, __ATOMIC_SEQ_CST);
}

TEST_CASE("the move of a Memory to a second mapping does not disturb writers") {
  struct sigaction action {};
  action.sa_sigaction = retry_moves;
  action.sa_flags = SA_SIGINFO;
  REQUIRE(sigaction(SIGSEGV, &action, &previous_action) == 0);
  for (int round = 0; round < 20; ++round) {
    auto memory = create_memory(4 * kGranule, nullptr);
    ReservedRange first(4 * kGranule), second(4 * kGranule);
    REQUIRE(map_memory(memory, 0, first.address, first.size));
    constexpr uint64_t kCounters = 64;
    std::atomic<bool> stop{false};
    uint64_t rounds = 0;
    std::thread writer([&] {
      do {
        for (uint64_t i = 0; i < kCounters; ++i) add_one(first.address + i * (first.size / kCounters));
        ++rounds;
      } while (!stop);
    });
    REQUIRE(map_memory(memory, 0, second.address, second.size));
    stop = true;
    writer.join();
    for (uint64_t i = 0; i < kCounters; ++i) {
      REQUIRE(
          reinterpret_cast<std::atomic<uint64_t>*>(second.address + i * (second.size / kCounters))->load() ==
          rounds);
    }
  }
  sigaction(SIGSEGV, &previous_action, nullptr);
}

namespace {
std::atomic<bool> moves_over{false};
std::atomic<int> late_retries{0};
// Looks at the fault only when all moves are over, as a handler does whose thread gets no processor.
void retry_late(int number, siginfo_t* info, void*) {
  while (!moves_over) std::this_thread::yield();
  if (wait_for_move(reinterpret_cast<uint64_t>(info->si_addr)))
    ++late_retries;
  else
    sigaction(number, &previous_action, nullptr);
}
}  // namespace

TEST_CASE("a write that a move disturbed is repeated after a later move of other memory") {
  struct sigaction action {};
  action.sa_sigaction = retry_late;
  action.sa_flags = SA_SIGINFO;
  REQUIRE(sigaction(SIGSEGV, &action, &previous_action) == 0);
  for (int round = 0; round < 20; ++round) {
    moves_over = false;
    auto memory = create_memory(4 * kGranule, nullptr), other = create_memory(kGranule, nullptr);
    ReservedRange first(4 * kGranule), second(4 * kGranule);
    ReservedRange other_first(kGranule), other_second(kGranule);
    REQUIRE(map_memory(memory, 0, first.address, first.size));
    REQUIRE(map_memory(other, 0, other_first.address, other_first.size));
    std::memset(&first[0], 1, first.size);
    std::memset(&other_first[0], 1, other_first.size);
    std::atomic<bool> stop{false}, started{false};
    std::thread writer([&] {
      while (!stop) {
        add_one(first.address);
        started = true;
      }
    });
    while (!started) std::this_thread::yield();
    CHECK(map_memory(memory, 0, second.address, second.size));
    CHECK(map_memory(other, 0, other_second.address, other_second.size));
    moves_over = true;
    stop = true;
    writer.join();
  }
  CHECK(late_retries > 0);
  sigaction(SIGSEGV, &previous_action, nullptr);
}
