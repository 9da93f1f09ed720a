// Memory of cuMemCreate that no kernel of the program can reach at the time of the migration.
#include "server/worker/migration/hidden_memory.h"

#include "protocol/calls/row_ids.h"
#include "tests/server/worker/migration/moved_session.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using cuda::Kind;
using cuda::make_handle;
using wire::Command;

namespace {

constexpr uint8_t kThere = 1;
constexpr uint64_t kWhole = make_handle(Kind::memory, 1, 300), kUnmapped = make_handle(Kind::memory, 1, 301),
                   kReleased = make_handle(Kind::memory, 1, 302), kInPart = make_handle(Kind::memory, 1, 303),
                   kEmpty = make_handle(Kind::memory, 1, 304);

wire::Buffer creation(uint64_t handle, uint64_t pages) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return bytes_of(handle, uint64_t{pages * kPage}, kThere, properties, uint64_t{0});
}

// The memory of a client, in pages.
struct Pages {
  explicit Pages(TestClient& client) : client(client) {}
  void create(uint64_t handle, uint64_t pages) {
    REQUIRE(client.ask("cuMemCreate", creation(handle, pages)) == CUDA_SUCCESS);
  }
  void map(uint64_t page, uint64_t pages, uint64_t first, uint64_t handle) {
    REQUIRE(client.ask("cuMemMap", bytes_of(client.address(page * kPage), pages * kPage, first * kPage,
                                            handle, uint64_t{0})) == CUDA_SUCCESS);
    set_access(page, pages, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  void set_access(uint64_t page, uint64_t pages, CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
    const auto body =
        bytes_of(client.address(page * kPage), pages * kPage, kThere, uint64_t{1}, access, uint64_t{1});
    REQUIRE(client.ask("cuMemSetAccess", body) == CUDA_SUCCESS);
  }
  void unmap(uint64_t page, uint64_t pages) {
    REQUIRE(client.ask("cuMemUnmap", bytes_of(client.address(page * kPage), pages * kPage)) == CUDA_SUCCESS);
  }
  void write(uint64_t page, unsigned seed) {
    REQUIRE(client.result(client.copy_in(0, page * kPage, pattern(kPage, seed), true)) == CUDA_SUCCESS);
  }
  bool has(uint64_t page, unsigned seed) {
    return client.data(client.copy_out(0, page * kPage, kPage)) == pattern(kPage, seed);
  }
  TestClient& client;
};

// Two pages that are mapped, one of them twice; two that are mapped no more; one of a released handle without
// access; one mapped page of two; and one that was never mapped. What is mapped may only be read, because the
// fake driver does not hash memory.
void make(TestClient& client) {
  Pages pages(client);
  pages.create(kWhole, 2);
  pages.create(kUnmapped, 2);
  pages.create(kReleased, 1);
  pages.create(kInPart, 2);
  pages.create(kEmpty, 1);
  pages.map(0, 2, 0, kWhole);
  pages.map(2, 1, 1, kWhole);
  pages.map(4, 2, 0, kUnmapped);
  pages.map(6, 1, 0, kReleased);
  pages.map(8, 2, 0, kInPart);
  for (const unsigned page : {0u, 1u, 4u, 5u, 6u, 8u, 9u}) pages.write(page, page + 1);
  pages.set_access(0, 2, CU_MEM_ACCESS_FLAGS_PROT_READ);
  pages.set_access(2, 1, CU_MEM_ACCESS_FLAGS_PROT_READ);
  pages.unmap(4, 2);
  pages.set_access(6, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  pages.unmap(8, 2);
  pages.map(10, 1, 1, kInPart);
  pages.set_access(10, 1, CU_MEM_ACCESS_FLAGS_PROT_READ);
  REQUIRE(client.ask("cuMemRelease", bytes_of(kReleased)) == CUDA_SUCCESS);
}

std::string stream_of_part(const wire::FillMemory& part, size_t size) {
  testing::RecordingConnection recorder;
  CommandSender sender(recorder, std::chrono::seconds(1));
  const auto send = [&](uint16_t id, uint64_t context, std::span<const std::byte> body,
                        std::span<const std::byte> more = {}) {
    REQUIRE(sender.send({.id = id, .context = context}, body, more));
  };
  const auto command = [](Command id) { return static_cast<uint16_t>(id); };
  send(command(Command::retain_primary_context), 0, bytes_of(wire::PrimaryContext{kContext, 0, 0}));
  send(cuda::row_id::cuMemCreate, kContext, creation(kWhole, 2));
  send(command(Command::fill_memory), 0, bytes_of(part), pattern(size, 5));
  send(command(Command::end_migration), 0, bytes_of(wire::EndMigration{0, 100, 1, 0}));
  return recorder.bytes;
}

}  // namespace

TEST_CASE("memory that is not mapped, or without access, has its contents after a migration") {
  const std::string stream = suspend(make);
  Adopting session(stream);
  INFO(session.reason);
  REQUIRE(session.adopted);
  Pages pages(session.client);
  for (const unsigned page : {0u, 1u}) CHECK(pages.has(page, page + 1));
  CHECK(pages.has(2, 2));
  CHECK(pages.has(10, 10));
  pages.map(4, 2, 0, kUnmapped);
  for (const unsigned page : {4u, 5u}) CHECK(pages.has(page, page + 1));
  pages.set_access(6, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(pages.has(6, 7));
  pages.map(8, 1, 0, kInPart);
  CHECK(pages.has(8, 9));
  pages.map(12, 1, 0, kEmpty);
  CHECK(session.client.data(session.client.copy_out(0, 12 * kPage, kPage)) == std::vector<std::byte>(kPage));
  pages.set_access(0, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  pages.write(1, 77);
  CHECK(pages.has(2, 77));  // still the same memory
}

TEST_CASE("a hostile source writes nothing outside of memory that it has made") {
  CHECK(Adopting(stream_of_part({kWhole, 0, kPage}, kPage)).adopted);
  struct Part {
    wire::FillMemory part;
    size_t size;
  };
  for (const Part& bad : {Part{{kWhole, 0, kPage + 1}, kPage}, Part{{kWhole, 0, 2 * kPage}, 1},
                          Part{{kWhole, 0, ~uint64_t{0}}, 2}, Part{{kWhole, 0, 0}, 0},
                          Part{{kWhole, 1, 0}, 1}, Part{{kUnmapped, 0, 0}, 1}, Part{{kContext, 0, 0}, 1},
                          Part{{0, 0, 0}, 1}, Part{{0, 1 << 20, 0}, 1}}) {
    INFO("memory " << bad.part.memory << " offset " << bad.part.offset << " bytes " << bad.size);
    Adopting session(stream_of_part(bad.part, bad.size));
    CHECK_FALSE(session.adopted);
    CHECK(session.reason.find("fill_memory") != std::string::npos);
  }
}
