#include "server/softgpu/memory/device_heap.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/server/softgpu/memory/instance.h"
#include "tests/support/catch.h"

using namespace gpupool::softgpu;

TEST_CASE("small allocations share granules and empty granules are returned") {
  Instance instance;
  auto device = SharedDevice::open(0, 16 * kGranule);
  REQUIRE(device);
  DeviceHeap heap(device);
  std::vector<uint64_t> small;
  for (int i = 0; i < 1000; ++i) {
    const auto address = heap.allocate(700);
    REQUIRE(address);
    CHECK(*address % DeviceHeap::kAlignment == 0);
    std::memset(reinterpret_cast<void*>(*address), i, 700);
    small.push_back(*address);
  }
  CHECK(device->free_bytes() == 15 * kGranule);
  for (int i = 0; i < 1000; ++i) CHECK(*reinterpret_cast<unsigned char*>(small[i] + 699) == i % 256);
  const auto found = heap.find(small[3] + 699);
  REQUIRE(found);
  CHECK(found->address == small[3]);
  CHECK(found->size == 700);
  CHECK_FALSE(heap.find(small[3] + 700));
  CHECK_FALSE(heap.free(small[3] + 512));
  for (uint64_t address : small) CHECK(heap.free(address));
  CHECK_FALSE(heap.free(small[0]));
  CHECK(device->free_bytes() == 16 * kGranule);
}

TEST_CASE("the heap allocates at most the device's memory and all of it again after a free") {
  Instance instance;
  auto device = SharedDevice::open(0, 8 * kGranule);
  DeviceHeap heap(device);
  const auto big = heap.allocate(7 * kGranule);
  REQUIRE(big);
  CHECK_FALSE(heap.allocate(kGranule + 1));
  const auto small = heap.allocate(100);
  REQUIRE(small);
  CHECK(device->free_bytes() == 0);
  CHECK_FALSE(heap.allocate(2 * kGranule));
  CHECK(heap.allocate(100));  // from the same granule
  CHECK(heap.free(*big));
  CHECK(device->free_bytes() == 7 * kGranule);
  CHECK(heap.allocate(7 * kGranule));
  CHECK_FALSE(heap.allocate(0));
  CHECK_FALSE(heap.allocate(UINT64_MAX));
}

TEST_CASE("random allocations keep their content and leak nothing") {
  Instance instance;
  auto device = SharedDevice::open(0, 64 * kGranule);
  {
    DeviceHeap heap(device);
    std::mt19937 random(1);
    struct Piece {
      uint64_t address, size;
      unsigned char mark;
    };
    std::vector<Piece> pieces;
    for (int i = 0; i < 5000; ++i) {
      if (pieces.size() > 50 && random() % 2) {
        const size_t victim = random() % pieces.size();
        const Piece piece = pieces[victim];
        auto* bytes = reinterpret_cast<unsigned char*>(piece.address);
        REQUIRE(std::all_of(bytes, bytes + piece.size, [&](unsigned char b) { return b == piece.mark; }));
        REQUIRE(heap.free(piece.address));
        pieces.erase(pieces.begin() + static_cast<long>(victim));
      } else {
        const uint64_t size = 1 + random() % (i % 100 == 0 ? 2 * kGranule : 40000);
        const auto address = heap.allocate(size);
        if (!address) continue;
        pieces.push_back({*address, size, static_cast<unsigned char>(random())});
        std::memset(reinterpret_cast<void*>(*address), pieces.back().mark, size);
      }
    }
  }
  CHECK(device->free_bytes() == 64 * kGranule);
}
