// Tests the client's handle table: live and stale handles, and destruction of the objects.
#include "client/session/handles.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

struct Counted : Object {
  explicit Counted(int& alive) : alive(alive) { ++alive; }
  ~Counted() override { --alive; }
  int& alive;
};

// Retires another handle with itself, as a graph retires those of its nodes.
struct Owner : Object {
  Owner(HandleTable& table, uint64_t inner) : table(table), inner(inner) {}
  ~Owner() override { table.retire(inner); }
  HandleTable& table;
  uint64_t inner;
};

}  // namespace

TEST_CASE("handles: a live handle finds its object only as its own kind") {
  HandleTable table;
  auto object = std::make_unique<Object>();
  Object* const made = object.get();
  const uint64_t handle = table.mint(Kind::stream, std::move(object));
  CHECK(made->handle == handle);
  CHECK(table.find(Kind::stream, handle) == made);
  CHECK(table.find(Kind::event, handle) == nullptr);
}

TEST_CASE("handles: handles that were never issued find nothing") {
  HandleTable table;
  const uint64_t handle = table.mint(Kind::event, nullptr);
  for (const uint64_t wrong : {uint64_t{0}, ~uint64_t{0}, handle + 16, handle ^ (uint64_t{1} << 36),
                               cuda::make_handle(Kind::event, 1, 0xffffffff)}) {
    CHECK(table.find(Kind::event, wrong) == nullptr);
    table.retire(wrong);
  }
  CHECK(table.find(Kind::event, handle) != nullptr);
}

TEST_CASE("handles: a retired handle stays stale when its slot is reused") {
  HandleTable table;
  int alive = 0;
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) {
    const uint64_t handle = table.mint(Kind::stream, std::make_unique<Counted>(alive));
    CHECK(alive == 1);
    CHECK(seen.insert(handle).second);
    CHECK(cuda::index_of(handle) == cuda::index_of(*seen.begin()));
    table.retire(handle);
    CHECK(alive == 0);
    CHECK(table.find(Kind::stream, handle) == nullptr);
    table.retire(handle);  // a second retire has no effect
  }
}

TEST_CASE("handles: look like pointers and never like CUDA's special streams") {
  HandleTable table;
  for (int i = 0; i < 5000; ++i) {  // more than one page of the table
    const uint64_t handle = table.mint(Kind::stream, nullptr);
    REQUIRE(handle % 16 == 0);
    REQUIRE(handle > 2);
    REQUIRE(handle >> 63 == 0);
    REQUIRE(table.find(Kind::stream, handle));
  }
}

TEST_CASE("handles: an object's destructor may use the table") {
  HandleTable table;
  const uint64_t inner = table.mint(Kind::event, nullptr);
  table.retire(table.mint(Kind::graph, std::make_unique<Owner>(table, inner)));
  CHECK(table.find(Kind::event, inner) == nullptr);
}

TEST_CASE("handles: threads get different handles and find their own") {
  HandleTable table;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        auto object = std::make_unique<Object>();
        const Object* const made = object.get();
        const uint64_t handle = table.mint(Kind::event, std::move(object));
        if (table.find(Kind::event, handle) != made) ++wrong;
        if (i % 3 != 0) table.retire(handle);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
