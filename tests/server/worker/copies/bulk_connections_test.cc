// Tests bulk connections of a client that the fuzzer fuzz_bulk_connections plays at random.
#include <memory>
#include <string>

#include "protocol/wire/copies.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"
#include "tests/support/piped_connection.h"

using namespace gpupool;
using namespace gpupool::worker;
using namespace gpupool::worker::test;
using wire::Command;

namespace {

constexpr uint64_t kPage = FakeDriver::kGranularity;

// A session with one bulk connection, whose bytes the test writes into `pipe`.
struct BulkClient {
  std::shared_ptr<testing::Pipe> pipe = std::make_shared<testing::Pipe>();
  TestClient client{false, nullptr, 0, false, nullptr, false, {}, {}, [this](SessionStart& start) {
                      start.welcome_bulk = [](transport::Connection&, transport::Deadline, bool) {
                        return Result<void>{};
                      };
                      start.bulk_connections = [this](const BulkSink& sink) {
                        if (sink) sink(std::make_unique<testing::PipedConnection>(pipe), std::nullopt, 0);
                      };
                    }};

  BulkClient() {
    client.retain();
    client.create_stream(0);
    client.map(0, kPage);
  }
  uint64_t copy_in(uint64_t bytes, uint32_t flags = 0) {
    return client.send(Command::bulk_to_device, bytes_of(wire::BulkCopy{.stream = stream_handle(0),
                                                                        .device = client.address(0),
                                                                        .pitch = bytes,
                                                                        .width = bytes,
                                                                        .rows = 1,
                                                                        .flags = flags,
                                                                        .reserved = 0}));
  }
  void send_piece(uint64_t copy, const std::string& data) {
    const wire::BulkHeader header{.length = static_cast<uint32_t>(data.size()), .copy = copy};
    pipe->add(std::string(reinterpret_cast<const char*>(&header), sizeof header) + data);
  }
  void free_in(uint64_t stream) {
    client.send(Command::free_memory, bytes_of(wire::FreeMemory{client.address(0), kPage, stream}));
  }
  bool is_mapped() {
    return client.fake.locked([this] { return client.fake.mapped.contains(client.address(0)); });
  }
  // Returns when all earlier commands have been executed, or wait for the client.
  void await_earlier_commands() {
    const uint64_t ping = client.send(Command::ping, {});
    while (client.receive().header.sequence != ping) {
    }
  }
};

}  // namespace

TEST_CASE("memory is not unmapped while a copy from the client writes it, in whatever stream it is freed") {
  BulkClient bulk;
  const uint64_t stream = GENERATE(uint64_t{0}, uint64_t{wire::kAllStreams});
  const uint64_t copy = bulk.copy_in(kPage);
  bulk.free_in(stream);
  bulk.await_earlier_commands();
  CHECK(bulk.is_mapped());
  bulk.send_piece(copy, std::string(kPage, 'x'));
  CHECK(bulk.client.ask(Command::synchronize_stream, bytes_of(stream_handle(0))) == CUDA_SUCCESS);
  bulk.await_earlier_commands();
  CHECK(!bulk.is_mapped());
}

TEST_CASE("the end of a session frees the event of a copy that orders all streams") {
  BulkClient bulk;
  const uint64_t copy = bulk.copy_in(100, wire::kCopyOrdersStreams);
  bulk.send_piece(copy, std::string(100, 'x'));
  CHECK(bulk.client.ask(Command::synchronize_stream, bytes_of(stream_handle(0))) == CUDA_SUCCESS);
  bulk.client.finish();
  CHECK(bulk.client.fake.events.empty());
}
