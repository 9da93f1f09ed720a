// Tests the memory of memory pools against a fake worker: what is mapped and given back, which streams may
// use a freed block, limits, attributes, and a server that refuses or answers wrongly.
#include "client/memory/pool_memory.h"

#include <utility>

#include "client/streams/stream_marks.h"
#include "tests/client/fake_session.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

constexpr uint64_t kGranule = 2u << 20;  // of fake_device_description()
constexpr uint64_t kLarge = 20u << 20;   // more than what may stay mapped when it is given back

CUstream stream(uint64_t number) {
  return cuda::handle_from_bits<CUstream>(number);
}
const CUstream kOne = stream(0x1001), kOther = stream(0x1002);

// A pool of a session's device. Blocks serve another stream only when they are settled, unless a test asks
// for more.
struct Fixture {
  explicit Fixture(uint64_t max_size = 0) : pool(PoolMemory::create(*context.device, max_size)) {
    set(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    set(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
  }
  ~Fixture() { pool->abandon(); }

  CUresult try_allocate(CUstream in, uint64_t bytes, CUdeviceptr* address) {
    return pool->allocate(context, in, bytes, {}, address);
  }
  CUdeviceptr allocate(CUstream in, uint64_t bytes) {
    CUdeviceptr address = 0;
    REQUIRE(try_allocate(in, bytes, &address) == CUDA_SUCCESS);
    return address;
  }
  void free(CUdeviceptr address, const FreePoint& point) {
    const auto taken = session.addresses().take_pooled(address);
    REQUIRE(taken);
    CHECK(taken->pool_memory == pool.get());
    pool->free(*taken, point);
  }
  void free_in(CUstream in, CUdeviceptr address) { free(address, freed_in(context, in)); }
  void free_settled(CUdeviceptr address) { free(address, {}); }

  template <class Value>
  CUresult set(CUmemPool_attribute attribute, Value value) {
    return pool->set(attribute, &value);
  }
  uint64_t get(CUmemPool_attribute attribute) const {
    uint64_t value = 0;
    CHECK(pool->get(attribute, &value) == CUDA_SUCCESS);
    return value;
  }
  uint64_t used() const { return get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }
  uint64_t reserved() const { return get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }

  // Commands that the server has received up to now.
  std::vector<ReceivedCommand> sent(Command command) {
    wire::Buffer reply;
    CHECK(session.call(
              static_cast<uint16_t>(Command::synchronize_context), nullptr, [](wire::Writer&) {}, reply) ==
          CUDA_SUCCESS);
    return worker.received(command);
  }
  size_t mappings() { return sent(Command::map_memory).size(); }

  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);
  const std::shared_ptr<PoolMemory> pool;
};

}  // namespace

TEST_CASE("pool memory: maps whole granules, and serves small requests from one of them") {
  Fixture test;
  const CUdeviceptr first = test.allocate(kOne, 1000), second = test.allocate(kOther, 1000);
  CHECK(second == first + 1024);
  CHECK(test.used() == 2048);
  CHECK(test.reserved() == kGranule);
  const CUdeviceptr large = test.allocate(kOne, kLarge + 1);
  const auto mapped = test.sent(Command::map_memory);
  REQUIRE(mapped.size() == 2);
  CHECK(mapped[0].as<wire::MapMemory>().address == first);
  CHECK(mapped[0].as<wire::MapMemory>().size == kGranule);
  CHECK(mapped[1].as<wire::MapMemory>().address == large);
  CHECK(mapped[1].as<wire::MapMemory>().size == kLarge + kGranule);
  const auto known = test.session.addresses().find(large + kLarge);
  REQUIRE(known);
  CHECK(known->address == large);
  CHECK(known->size == kLarge + 1);
  CHECK(known->device == test.context.device);
}

TEST_CASE("pool memory: a freed block serves its own stream without a command") {
  Fixture test;
  const CUdeviceptr block = test.allocate(kOne, kLarge);
  const size_t before = test.worker.received().size();
  test.free_in(kOne, block);
  CHECK(test.used() == 0);
  CHECK(test.reserved() == kLarge);
  CHECK(test.allocate(kOne, kLarge) == block);
  CHECK(test.worker.received().size() == before);
}

TEST_CASE("pool memory: a freed block serves other streams once its work is known to be done") {
  Fixture test;
  const CUdeviceptr block = test.allocate(kOne, kLarge);
  SECTION("not before") {
    test.free_in(kOne, block);
    CHECK(test.allocate(kOther, kLarge) != block);
    CHECK(test.mappings() == 2);
  }
  SECTION("no work used it") {
    test.free_settled(block);
    CHECK(test.allocate(kOther, kLarge) == block);
  }
  SECTION("the program has waited for the stream") {
    test.set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kLarge);
    test.free_in(kOne, block);
    after_wait(stream_order().reach(order_key(test.context, kOne)));
    CHECK(test.allocate(kOther, kLarge) == block);
  }
  SECTION("the other stream waits for the free") {
    test.free_in(kOne, block);
    stream_order().waits(order_key(test.context, kOther),
                         stream_order().reach(order_key(test.context, kOne)));
    SECTION("which the pool follows") {
      CHECK(test.allocate(kOther, kLarge) == block);
    }
    SECTION("which the pool must not follow") {
      test.set(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
      CHECK(test.allocate(kOther, kLarge) != block);
    }
  }
}

TEST_CASE("pool memory: a block that is freed serves no other context") {
  Fixture test;
  Context& other = make_context(test.session);
  delete std::exchange(other.device, test.context.device);
  test.free_settled(test.allocate(kOne, kLarge));
  CUdeviceptr address = 0;
  CHECK(test.pool->allocate(other, nullptr, kLarge, {}, &address) == CUDA_SUCCESS);
  CHECK(test.mappings() == 2);
}

TEST_CASE("pool memory: refuses what the pool or its device cannot give") {
  Fixture test(3 * kGranule);
  CUdeviceptr address = 0;
  CHECK(test.try_allocate(kOne, 0, &address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(test.try_allocate(kOne, 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(test.try_allocate(kOne, 3 * kGranule + 1, &address) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(test.try_allocate(kOne, UINT64_MAX, &address) == CUDA_ERROR_OUT_OF_MEMORY);
  const CUdeviceptr most = test.allocate(kOne, 2 * kGranule);
  CHECK(test.try_allocate(kOne, 2 * kGranule, &address) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(address == 0);
  CHECK(test.mappings() == 1);  // the others were refused here
  test.allocate(kOne, kGranule);
  test.free_settled(most);
  CHECK(test.allocate(kOne, 2 * kGranule) == most);

  Fixture elsewhere;  // another server
  CHECK(test.pool->allocate(elsewhere.context, nullptr, 1, {}, &address) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("pool memory: a server without memory is asked again once idle memory was given back") {
  Fixture test;
  test.free_settled(test.allocate(kOne, kLarge));
  test.worker.on(Command::map_memory, [&](const ReceivedCommand& command) {
    const auto body = command.as<wire::MapMemory>();
    const bool room = !test.worker.received(Command::free_memory).empty();
    test.worker.reply(command.header.sequence, room ? bytes_of(body.address) : "",
                      room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
  });
  SECTION("which is enough") {
    test.allocate(kOne, 2 * kLarge);
    CHECK(test.reserved() == 2 * kLarge);
    CHECK(test.sent(Command::map_memory).size() == 3);
  }
  SECTION("which is not") {
    test.worker.answer(Command::map_memory, "", CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr address = 0;
    CHECK(test.try_allocate(kOne, 2 * kLarge, &address) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(address == 0);
    CHECK(test.reserved() == 0);
  }
}

TEST_CASE("pool memory: memory that was mapped belongs to the pool, although an earlier call has failed") {
  Fixture test;
  test.worker.on(Command::map_memory, [&](const ReceivedCommand& command) {
    test.worker.reply(command.header.sequence, bytes_of(command.as<wire::MapMemory>().address),
                      CUDA_ERROR_LAUNCH_FAILED);
  });
  CUdeviceptr address = 0;
  CHECK(test.try_allocate(kOne, kLarge, &address) == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(address == 0);
  CHECK(test.used() == 0);
  CHECK(test.reserved() == kLarge);
}

TEST_CASE("pool memory: an answer of the wrong size maps nothing") {
  Fixture test;
  const std::string body = GENERATE("", "1234567", "123456789");
  test.worker.answer(Command::map_memory, body);
  CUdeviceptr address = 0;
  CHECK(test.try_allocate(kOne, kLarge, &address) == CUDA_ERROR_UNKNOWN);
  CHECK(address == 0);
  CHECK(test.used() == 0);
  CHECK(test.reserved() == 0);
}

TEST_CASE("pool memory: trimming gives spans without live blocks back to the server") {
  Fixture test;
  const CUdeviceptr kept = test.allocate(kOne, kLarge), settled = test.allocate(kOne, kLarge),
                    pending = test.allocate(kOne, kLarge);
  test.free_settled(settled);
  test.free_in(kOne, pending);
  CHECK_FALSE(test.pool->trim(3 * kLarge));
  CHECK(test.sent(Command::free_memory).empty());
  SECTION("those whose work is done") {
    CHECK(test.pool->trim(0));
    CHECK_FALSE(test.pool->trim(0));
    const auto freed = test.sent(Command::free_memory);
    REQUIRE(freed.size() == 1);
    CHECK(freed[0].as<wire::FreeMemory>().address == settled);
    CHECK(freed[0].as<wire::FreeMemory>().size == kLarge);
    CHECK(test.reserved() == 2 * kLarge);
  }
  SECTION("and the others when the server may wait for their work") {
    CHECK(test.pool->trim(0, true));
    CHECK(test.reserved() == kLarge);
    // A free of nothing makes the server wait for the stream first.
    const auto freed = test.sent(Command::free_memory);
    REQUIRE(freed.size() == 3);
    CHECK(freed[0].as<wire::FreeMemory>().size == 0);
    CHECK(freed[0].header.context == test.context.handle);
  }
  SECTION("as few as are above what is to be kept") {
    test.free_settled(kept);
    CHECK(test.pool->trim(2 * kLarge));
    CHECK(test.reserved() == 2 * kLarge);
  }
}

TEST_CASE("pool memory: waits give memory above the threshold back") {
  Fixture test;
  const CUdeviceptr first = test.allocate(kOne, kLarge), second = test.allocate(kOne, kLarge);
  REQUIRE(test.set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, kLarge) == CUDA_SUCCESS);
  test.free_in(kOne, first);
  test.free_in(kOne, second);
  after_wait({});  // for other work
  CHECK(test.reserved() == 2 * kLarge);
  after_wait(stream_order().reach(order_key(test.context, kOne)));
  CHECK(test.reserved() == kLarge);
}

TEST_CASE("pool memory: an abandoned pool lives as long as its allocations") {
  Fixture test;
  const CUdeviceptr live = test.allocate(kOne, kLarge), freed = test.allocate(kOne, kLarge);
  test.free_in(kOne, freed);
  test.pool->abandon();
  CHECK(test.reserved() == kLarge);
  CHECK_FALSE(test.pool->is_unused());
  test.free_in(kOne, live);
  CHECK(test.reserved() == 0);
  CHECK(test.pool->is_unused());
}

TEST_CASE("pool memory: forgets the memory of a destroyed context") {
  Fixture test;
  test.allocate(kOne, kLarge);
  test.pool->forget_context(test.context.handle);
  CHECK(test.reserved() == 0);
  CHECK(test.used() == 0);
}

TEST_CASE("pool memory: high marks stay until they are reset, and can be set to nothing else") {
  Fixture test;
  test.free_settled(test.allocate(kOne, 2 * kLarge));
  test.pool->trim(0);
  test.allocate(kOne, kLarge);
  CHECK(test.get(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 2 * kLarge);
  CHECK(test.get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 2 * kLarge);
  for (const auto mark : {CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH}) {
    CHECK(test.set(mark, uint64_t{1}) == CUDA_ERROR_INVALID_VALUE);
    CHECK(test.get(mark) == 2 * kLarge);
    CHECK(test.set(mark, uint64_t{0}) == CUDA_SUCCESS);
    CHECK(test.get(mark) == kLarge);
  }
  CHECK(test.set(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, uint64_t{0}) == CUDA_ERROR_INVALID_VALUE);
  const auto unknown = static_cast<CUmemPool_attribute>(999);
  CHECK(test.set(unknown, uint64_t{0}) == CUDA_ERROR_INVALID_VALUE);
  uint64_t value = 0;
  CHECK(test.pool->get(unknown, &value) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("pool memory: only the pool's own device has access unless it is granted") {
  Fixture test;
  const int own = test.context.device->ordinal;
  CHECK(test.pool->access(own) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(test.pool->access(own + 1) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
}
