#include "protocol/driver/context_local_storage.h"

#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using gpupool::cuda::ContextLocalStorage;

namespace {

CUcontext context(uintptr_t number) {
  return reinterpret_cast<CUcontext>(number * 64);
}
void* pointer(uintptr_t number) {
  return reinterpret_cast<void*>(number * 8);
}

// Never destroyed, as in a driver.
ContextLocalStorage& fresh() {
  static auto* const all = new std::deque<ContextLocalStorage>;
  return all->emplace_back();
}

std::vector<std::pair<CUcontext, void*>> destroyed;
void note(CUcontext context, void*, void* value) {
  destroyed.emplace_back(context, value);
}

ContextLocalStorage* reentrant = nullptr;
int generations = 0;
void put_again(CUcontext context, void* key, void* value) {
  void* found = nullptr;
  CHECK_FALSE(reentrant->get(context, key, &found));  // removed before its destructor runs
  if (++generations < 3) CHECK(reentrant->put(context, key, value, put_again));
}

}  // namespace

TEST_CASE("values are kept by context and key") {
  auto& storage = fresh();
  void* value = pointer(99);
  CHECK_FALSE(storage.get(context(1), pointer(1), &value));
  CHECK(value == pointer(99));
  CHECK(storage.put(context(1), pointer(1), pointer(10), nullptr));
  CHECK(storage.put(context(2), pointer(1), pointer(20), nullptr));
  CHECK(storage.put(context(1), pointer(2), nullptr, nullptr));
  CHECK(storage.get(context(1), pointer(1), &value));
  CHECK(value == pointer(10));
  CHECK(storage.get(context(2), pointer(1), &value));
  CHECK(value == pointer(20));
  CHECK(storage.get(context(1), pointer(2), &value));
  CHECK(value == nullptr);
  CHECK(storage.put(context(1), pointer(1), pointer(11), nullptr));
  CHECK(storage.get(context(1), pointer(1), &value));
  CHECK(value == pointer(11));
  CHECK(storage.remove(context(1), pointer(1)));
  CHECK_FALSE(storage.remove(context(1), pointer(1)));
  CHECK_FALSE(storage.get(context(1), pointer(1), &value));
  CHECK(storage.get(context(2), pointer(1), &value));
}

TEST_CASE("destroying a context drops its values and runs their destructors") {
  auto& storage = fresh();
  destroyed.clear();
  for (uintptr_t key = 1; key <= 100; ++key) {
    REQUIRE(storage.put(context(1), pointer(key), pointer(1000 + key), note));
    REQUIRE(storage.put(context(2), pointer(key), pointer(2000 + key), key % 2 != 0 ? note : nullptr));
  }
  storage.remove(context(1), pointer(7));
  storage.destroy_context(context(1));
  CHECK(destroyed.size() == 99);
  for (const auto& [owner, value] : destroyed) CHECK((owner == context(1) && value != pointer(1007)));
  void* value = nullptr;
  CHECK_FALSE(storage.get(context(1), pointer(1), &value));
  CHECK(storage.get(context(2), pointer(1), &value));
  storage.destroy_context(context(1));
  CHECK(destroyed.size() == 99);
  storage.destroy_context(context(2));
  CHECK(destroyed.size() == 149);
}

TEST_CASE("destructors may use the storage") {
  reentrant = &fresh();
  generations = 0;
  REQUIRE(reentrant->put(context(1), pointer(1), pointer(5), put_again));
  reentrant->destroy_context(context(1));
  CHECK(generations == 3);
  void* value = nullptr;
  CHECK_FALSE(reentrant->get(context(1), pointer(1), &value));
}

TEST_CASE("a long sequence of operations leaves the same contents as a map") {
  auto& storage = fresh();
  std::map<std::pair<uintptr_t, uintptr_t>, uintptr_t> model;
  std::mt19937 random(7);
  for (int step = 0; step < 200000; ++step) {
    const uintptr_t owner = 1 + random() % 8;
    const uintptr_t key = 1 + random() % 200;
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        REQUIRE(storage.put(context(owner), pointer(key), pointer(step), nullptr));
        model[{owner, key}] = step;
        break;
      case 3:
      case 4: CHECK(storage.remove(context(owner), pointer(key)) == (model.erase({owner, key}) == 1)); break;
      default: {
        void* value = nullptr;
        const auto at = model.find({owner, key});
        const bool found = storage.get(context(owner), pointer(key), &value);
        if (found != (at != model.end()) || (found && value != pointer(at->second))) FAIL("step " << step);
      }
    }
    if (random() % 5000 == 0) {
      storage.destroy_context(context(owner));
      std::erase_if(model, [owner](const auto& item) { return item.first.first == owner; });
    }
  }
}

TEST_CASE("readers see consistent values while writers rebuild the table") {
  auto& storage = fresh();
  constexpr uintptr_t kSteady = 10;
  for (uintptr_t key = 1; key <= kSteady; ++key)
    REQUIRE(storage.put(context(1), pointer(key), pointer(key * 3), nullptr));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      uintptr_t key = 1;
      while (!stop.load(std::memory_order_relaxed)) {
        void* value = nullptr;
        if (!storage.get(context(1), pointer(key), &value) || value != pointer(key * 3)) ++wrong;
        if (storage.get(context(3), pointer(key), &value)) ++wrong;
        key = key % kSteady + 1;
      }
    });
  }
  std::mt19937 random(3);
  for (int step = 0; step < 30000; ++step) {
    const uintptr_t key = 1 + random() % 500;
    if (random() % 2 == 0) {
      storage.put(context(2), pointer(key), pointer(step), nullptr);
    } else {
      storage.remove(context(2), pointer(key));
    }
    if (step % 1000 == 0) storage.destroy_context(context(2));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
}
