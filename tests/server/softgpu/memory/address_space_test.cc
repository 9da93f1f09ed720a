#include "server/softgpu/memory/address_space.h"

#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool::softgpu;

TEST_CASE("reserves the address range and recognises its addresses") {
  REQUIRE(reserve_range());
  REQUIRE(reserve_range());
  CHECK(in_range(kRangeBase, kRangeSize));
  CHECK_FALSE(in_range(kRangeBase, kRangeSize + 1));
  CHECK_FALSE(in_range(kRangeBase - 1, 1));
  CHECK_FALSE(in_range(kRangeBase + kRangeSize, 1));
  CHECK_FALSE(in_range(0, 8));
  CHECK_FALSE(in_range(kRangeBase + 8, UINT64_MAX));
}

TEST_CASE("addresses: alignment, hints, reuse and refusals") {
  const auto a = allocate_addresses(1, 1, 0);
  REQUIRE(a);
  CHECK(*a % page_bytes() == 0);
  const auto b = allocate_addresses(3 * kGranule, kGranule, 0);
  REQUIRE(b);
  CHECK(*b % kGranule == 0);
  CHECK((*b >= *a + page_bytes() || *a >= *b + 3 * kGranule));

  const uint64_t wish = kRangeBase + kRangeSize / 2;
  const auto c = allocate_addresses(kGranule, kGranule, wish);
  REQUIRE(c == wish);
  const auto d = allocate_addresses(kGranule, kGranule, wish);
  REQUIRE(d);
  CHECK(*d != wish);
  const auto outside = allocate_addresses(kGranule, kGranule, 0x1000);
  REQUIRE(outside);
  CHECK(in_range(*outside, kGranule));

  CHECK_FALSE(allocate_addresses(0, 1, 0));
  CHECK_FALSE(allocate_addresses(kRangeSize + 1, 1, 0));
  CHECK_FALSE(allocate_addresses(kGranule, 3, 0));
  CHECK_FALSE(allocate_addresses(UINT64_MAX, 1, 0));

  CHECK_FALSE(free_addresses(*b, kGranule));
  CHECK_FALSE(free_addresses(*b + kGranule, 2 * kGranule));
  CHECK(free_addresses(*c, kGranule));
  CHECK_FALSE(free_addresses(*c, kGranule));
  CHECK(allocate_addresses(kGranule, kGranule, wish) == wish);
  for (uint64_t address : {wish, *d, *outside}) CHECK(free_addresses(address, kGranule));
  CHECK(free_addresses(*b, 3 * kGranule));
  CHECK(free_addresses(*a, 1));
}

TEST_CASE("freed addresses merge into one range again") {
  const auto first = allocate_addresses(1, 1, 0);
  REQUIRE(first);
  REQUIRE(free_addresses(*first, 1));
  std::vector<uint64_t> pieces;
  for (int i = 0; i < 100; ++i) pieces.push_back(*allocate_addresses((i % 7 + 1) * page_bytes(), 1, 0));
  for (int i = 0; i < 100; i += 2) REQUIRE(free_addresses(pieces[i], (i % 7 + 1) * page_bytes()));
  for (int i = 1; i < 100; i += 2) REQUIRE(free_addresses(pieces[i], (i % 7 + 1) * page_bytes()));
  constexpr uint64_t kSmallPiece = kRangeSize / 16 - kGranule, kLargePiece = kRangeSize / 8 * 7;
  CHECK(allocate_addresses(kSmallPiece, kGranule, 0) == *first);
  CHECK(allocate_addresses(kLargePiece, kGranule, 0) == kRangeBase);
  REQUIRE(free_addresses(*first, kSmallPiece));
  REQUIRE(free_addresses(kRangeBase, kLargePiece));
}

TEST_CASE("concurrent threads get addresses without overlap") {
  std::vector<std::vector<uint64_t>> got(4);
  std::vector<std::thread> threads;
  for (auto& mine : got) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < 500; ++i) {
        mine.push_back(*allocate_addresses(page_bytes(), 1, 0));
        if (i % 3 == 0) {
          free_addresses(mine.back(), page_bytes());
          mine.pop_back();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<uint64_t> all;
  for (auto& mine : got) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  for (uint64_t address : all) CHECK(free_addresses(address, page_bytes()));
}

TEST_CASE("host memory is zeroed, aligned, and zeroed again when reused") {
  const auto a = allocate_host(5 * page_bytes() + 1, 64 << 10);
  REQUIRE(a);
  CHECK(*a % (64 << 10) == 0);
  auto* bytes = reinterpret_cast<char*>(*a);
  for (uint64_t i = 0; i < 5 * page_bytes() + 1; ++i) REQUIRE(bytes[i] == 0);
  std::memset(bytes, 0x5a, 5 * page_bytes() + 1);
  discard_host(*a, 2 * page_bytes());
  CHECK(bytes[0] == 0);
  CHECK(bytes[2 * page_bytes()] == 0x5a);
  free_host(*a, 5 * page_bytes() + 1);
  const auto b = allocate_host(5 * page_bytes() + 1, 64 << 10);
  REQUIRE(b == a);
  CHECK(bytes[3 * page_bytes()] == 0);
  free_host(*b, 5 * page_bytes() + 1);
}

TEST_CASE("registered host memory") {
  std::vector<char> buffer(10000);
  const auto address = reinterpret_cast<uint64_t>(buffer.data());
  CHECK_FALSE(is_registered_host(address, 1, false));
  REQUIRE(register_host(address, 8000, false));
  CHECK_FALSE(register_host(address + 7999, 10, false));
  CHECK_FALSE(register_host(address - 10, 11, false));
  CHECK(register_host(address + 8000, 2000, true));
  CHECK(is_registered_host(address, 8000, true));
  CHECK(is_registered_host(address + 7999, 1, true));
  CHECK_FALSE(is_registered_host(address + 7999, 2, false));  // two registrations are not one buffer
  CHECK_FALSE(is_registered_host(address - 1, 1, false));
  CHECK(is_registered_host(address + 8000, 2000, false));
  CHECK_FALSE(is_registered_host(address + 8000, 2000, true));
  CHECK_FALSE(is_registered_host(address, UINT64_MAX, false));
  CHECK_FALSE(register_host(0, 8, false));
  CHECK_FALSE(register_host(address + 20000, 0, false));
  CHECK_FALSE(register_host(kRangeBase + 5, 10, false));
  CHECK_FALSE(register_host(kRangeBase - 5, 10, false));
  CHECK_FALSE(unregister_host(address + 1));
  CHECK(unregister_host(address));
  CHECK_FALSE(unregister_host(address));
  CHECK(unregister_host(address + 8000));
  CHECK_FALSE(is_registered_host(address, 1, false));
}
