// Tests the backlog: commands of a stream that waits for the client, and commands that depend on them, are
// kept in order; all other commands pass.
#include <set>

#include "protocol/wire/commands.h"
#include "protocol/wire/copies.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::worker::test;
using wire::Command;

namespace {

constexpr uint64_t kHold = 77;

// A session with streams 0 and 1, of which 0 is held.
struct Held {
  explicit Held(uint32_t flags = CU_STREAM_NON_BLOCKING, worker::Usage usage = {})
      : client(false, nullptr, 0, false, nullptr, false, std::move(usage)) {
    client.retain();
    client.map(0, FakeDriver::kGranularity);
    client.create_stream(0, flags);
    client.create_stream(1);
    for (uint32_t event : {0u, 1u}) client.call("cuEventCreate", bytes_of(event_handle(event), uint32_t{2}));
    client.send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(0), kHold}));
  }
  void fill(uint64_t stream, uint64_t offset, uint8_t value) {
    client.call("cuMemsetD8Async", bytes_of(client.address(offset), value, uint64_t{16}, stream));
  }
  void resume() { client.send(Command::resume_stream, bytes_of(wire::ResumeStream{kHold})); }
  uint64_t synchronize(uint64_t stream) {
    return client.send(Command::synchronize_stream, bytes_of(stream), true);
  }
  std::byte read(uint64_t stream, uint64_t offset) {
    return client.data(client.copy_out(stream, offset, 1))[0];
  }

  TestClient client;
};

constexpr uint64_t kFirst = stream_handle(0), kSecond = stream_handle(1);

}  // namespace

TEST_CASE("executes commands behind a held stream in order when it resumes") {
  Held held;
  held.fill(kFirst, 0, 1);
  held.fill(kFirst, 0, 2);
  std::vector<std::byte> data(64, std::byte{3});
  held.client.copy_in(kFirst, 100, data);
  held.fill(kSecond, 200, 4);
  CHECK(held.read(kSecond, 200) == std::byte{4});
  CHECK(held.read(kSecond, 0) != std::byte{2});
  CHECK(held.client.ask("cuStreamQuery", bytes_of(kFirst)) == CUDA_ERROR_NOT_READY);
  const uint64_t wait = held.synchronize(kFirst);
  CHECK(held.client.silent());
  held.resume();
  CHECK(held.client.result(wait) == CUDA_SUCCESS);
  CHECK(held.read(kFirst, 0) == std::byte{2});
  CHECK(held.read(kFirst, 100) == std::byte{3});
  CHECK(held.client.ask("cuStreamQuery", bytes_of(kFirst)) == CUDA_SUCCESS);
}

TEST_CASE("an event recorded behind a held stream is not ready and blocks its waiters") {
  Held held;
  held.client.record(0, kFirst);
  CHECK(held.client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_ERROR_NOT_READY);
  CHECK(held.client.ask("cuEventQuery", bytes_of(event_handle(1))) == CUDA_SUCCESS);
  held.client.call("cuStreamWaitEvent", bytes_of(kSecond, event_handle(0), uint32_t{0}));
  held.fill(kSecond, 0, 5);
  const uint64_t event = held.client.send(Command::synchronize_event, bytes_of(event_handle(0)), true);
  const uint64_t stream = held.synchronize(kSecond);
  const uint64_t context = held.client.send(Command::synchronize_context, {}, true);
  CHECK(held.client.silent());
  held.resume();
  std::set<uint64_t> answered;
  for (int i = 0; i < 3; ++i) {
    const Message message = held.client.receive();
    CHECK(message.header.result == CUDA_SUCCESS);
    answered.insert(message.header.sequence);
  }
  CHECK(answered == std::set<uint64_t>{event, stream, context});
  CHECK(held.read(kSecond, 0) == std::byte{5});
}

TEST_CASE("a record for other processes is reported once the device has it") {
  Held held;
  held.client.record(0, kFirst);
  const uint64_t recorded = held.client.send(Command::await_record, bytes_of(event_handle(0)), true);
  CHECK(held.client.silent());
  held.client.record(1, kSecond);
  CHECK(held.client.ask(Command::await_record, bytes_of(event_handle(1))) == CUDA_SUCCESS);
  held.resume();
  CHECK(held.client.result(recorded) == CUDA_SUCCESS);
}

TEST_CASE("a command ordered after all others does not delay copies and host functions of other streams") {
  Held held;
  held.fill(kFirst, 0, 1);
  held.client.send(Command::set_border_color, bytes_of(wire::SetBorderColor{}));
  held.fill(kSecond, 100, 2);
  CHECK(held.read(kSecond, 100) == std::byte{2});
  held.client.create_stream(2);
  held.client.send(Command::host_function, bytes_of(wire::HostFunction{kSecond, 5}));
  CHECK(held.client.receive().header.kind == wire::MessageKind::host_callback);
  held.fill(stream_handle(2), 200, 3);
  held.client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{5, stream_handle(2)}));
  CHECK(held.client.result(held.synchronize(kSecond)) == CUDA_SUCCESS);
  held.client.record(0, kSecond);  // waits: set_border_color may name the same object
  CHECK(held.client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_ERROR_NOT_READY);
  held.resume();
  held.client.result(held.synchronize(kFirst));
  CHECK(held.client.ask("cuEventQuery", bytes_of(event_handle(0))) == CUDA_SUCCESS);
}

// Otherwise a program whose threads always hold one of two streams would delay the command for ever.
TEST_CASE("a command does not wait for streams that later commands hold") {
  Held held;
  const auto context = held.client.send(Command::synchronize_context, {}, true);
  const auto alone = held.client.send(Command::set_border_color, bytes_of(wire::SetBorderColor{}), true);
  held.client.record(0, kSecond);  // sent after it
  const auto event = held.client.send(Command::synchronize_event, bytes_of(event_handle(0)), true);
  held.client.create_stream(2);
  held.client.send(Command::hold_stream, bytes_of(wire::HoldStream{stream_handle(2), kHold + 1}));
  CHECK(held.client.silent());
  held.resume();
  CHECK(held.client.result(context) == CUDA_SUCCESS);
  CHECK(held.client.result(alone) == CUDA_ERROR_INVALID_HANDLE);  // names no texture
  CHECK(held.client.result(event) == CUDA_SUCCESS);
  const uint64_t later = held.client.send(Command::synchronize_context, {}, true);
  CHECK(held.client.silent());
  held.client.send(Command::resume_stream, bytes_of(wire::ResumeStream{kHold + 1}));
  CHECK(held.client.result(later) == CUDA_SUCCESS);
}

TEST_CASE("a stream wait ignores gates that later commands close") {
  Held held;
  const uint64_t wait = held.synchronize(kFirst);
  held.client.send(Command::hold_stream, bytes_of(wire::HoldStream{kFirst, kHold + 1}));
  held.resume();
  CHECK(held.client.result(wait) == CUDA_SUCCESS);
  const uint64_t later = held.synchronize(kFirst);
  CHECK(held.client.silent());
  held.client.send(Command::resume_stream, bytes_of(wire::ResumeStream{kHold + 1}));
  CHECK(held.client.result(later) == CUDA_SUCCESS);
}

TEST_CASE("tells a client that its backlog is full and when it has room again") {
  worker::Usage usage;
  usage.account = *quota::SharedPage<quota::Account>::create("test");
  (*usage.account)->queued_bytes = 1u << 20;
  Held held(CU_STREAM_NON_BLOCKING, usage);
  const auto ask = [&](uint64_t stream) {
    return held.client.send(Command::await_room, bytes_of(wire::AwaitRoom{stream}), true);
  };
  const auto flags = [&](uint64_t command) {
    Message message = held.client.receive();
    while (message.header.kind == wire::MessageKind::pong) message = held.client.receive();
    CHECK(message.header.sequence == command);
    CHECK(message.header.result == CUDA_SUCCESS);
    return message.header.flags;
  };
  CHECK(flags(ask(kFirst)) == 0);
  const std::vector<std::byte> data(60'000, std::byte{3});
  for (int copies = 0; copies < 10; ++copies) held.client.copy_in(kFirst, 100, data);
  CHECK(held.client.receive().header.flags == wire::kSendAwaitRoom);  // sent without a request
  held.client.call("cuMemsetD8Async", bytes_of(uint64_t{1}, uint8_t{1}, uint64_t{16}, kFirst));  // fails
  const uint64_t waits = ask(kFirst);
  CHECK(flags(ask(kSecond)) == wire::kSendAwaitRoom);
  CHECK(held.client.silent());
  held.resume();
  CHECK(flags(waits) == 0);
  CHECK(held.client.result(held.synchronize(kFirst)) ==
        CUDA_ERROR_INVALID_VALUE);  // the earlier reply did not report it
  CHECK(held.read(kFirst, 100) == std::byte{3});
}

TEST_CASE("ends the session of a client that exceeds the backlog limit") {
  worker::Usage usage;
  usage.account = *quota::SharedPage<quota::Account>::create("test");
  (*usage.account)->queued_bytes = 1u << 20;
  Held held(CU_STREAM_NON_BLOCKING, usage);
  const std::vector<std::byte> data(1'000'000, std::byte{3});
  for (int copies = 0; copies < 140; ++copies) held.client.copy_in(kFirst, 100, data);
  Message message = held.client.receive();
  while (message.header.kind == wire::MessageKind::pong) message = held.client.receive();
  CHECK(message.header.kind == wire::MessageKind::end);
}

TEST_CASE("a copy that other streams wait for passes commands that order all streams") {
  Held held;
  constexpr uint64_t kOwn = stream_handle(2);
  held.client.create_stream(2);
  std::vector<std::byte> data(16, std::byte{3});
  wire::Buffer copy =
      bytes_of(wire::CopyToDevice{kFirst, held.client.address(0), 16, 16, 1, wire::kCopyOrdersStreams, 0});
  wire::Writer(copy).put_bytes(data.data(), data.size());
  held.client.send(Command::copy_to_device, copy);
  held.client.send(Command::own_stream, bytes_of(wire::OwnStream{kOwn}));
  CHECK(held.client.data(held.client.copy_out(kOwn, 100, 1)).size() == 1);
  const uint64_t other = held.client.copy_out(kSecond, 0, 1);
  CHECK(held.client.silent());
  held.resume();
  CHECK(held.client.data(other)[0] == std::byte{3});
}

TEST_CASE("a wait covers an earlier barrier but no later command") {
  Held held;
  const auto copy = [&](uint64_t stream) {
    wire::Buffer body =
        bytes_of(wire::CopyToDevice{stream, held.client.address(0), 16, 16, 1, wire::kCopyOrdersStreams, 0});
    body.insert(body.end(), 16, std::byte{3});
    held.client.send(Command::copy_to_device, body);
  };
  CHECK(held.client.ask(Command::await_barriers, {}) == CUDA_SUCCESS);
  held.client.send(Command::hold_stream, bytes_of(wire::HoldStream{kSecond, kHold + 1}));
  copy(kFirst);
  const uint64_t awaited = held.client.send(Command::await_barriers, {}, true);
  copy(kSecond);
  CHECK(held.client.silent());
  held.resume();
  CHECK(held.client.result(awaited) == CUDA_SUCCESS);
  held.client.send(Command::resume_stream, bytes_of(wire::ResumeStream{kHold + 1}));
}

TEST_CASE("a hold that is resumed before the stream reaches it has no effect") {
  Held held;
  held.client.send(Command::hold_stream, bytes_of(wire::HoldStream{kFirst, kHold + 1}));
  held.client.send(Command::resume_stream, bytes_of(wire::ResumeStream{kHold + 1}));
  const uint64_t wait = held.synchronize(kFirst);
  CHECK(held.client.silent());
  held.resume();
  CHECK(held.client.result(wait) == CUDA_SUCCESS);
}

TEST_CASE("a free in a blocking stream comes behind the legacy stream") {
  Held held(CU_STREAM_DEFAULT);
  held.client.map(FakeDriver::kGranularity, FakeDriver::kGranularity);
  held.client.create_stream(2, CU_STREAM_DEFAULT);
  held.fill(0, FakeDriver::kGranularity, 8);  // in the legacy stream, behind the held stream
  const wire::FreeMemory free{held.client.address(FakeDriver::kGranularity), FakeDriver::kGranularity,
                              stream_handle(2)};
  const uint64_t freed = held.client.send(Command::free_memory, bytes_of(free));
  CHECK(held.client.reply(held.client.send(Command::await_barriers, {}, true)).header.retired < freed);
  held.resume();
  CHECK(held.client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(held.client.reply(held.client.send(Command::await_barriers, {}, true)).header.retired >= freed);
}

TEST_CASE("destroys an object after the kept commands that name it and allows earlier reuse of its handle") {
  Held held;
  constexpr uint64_t kNext = cuda::make_handle(cuda::Kind::event, 2, 200);
  constexpr uint64_t kNextStream = cuda::make_handle(cuda::Kind::stream, 2, 100);
  held.client.record(0, kFirst);
  held.fill(kFirst, 0, 6);
  held.client.call("cuEventDestroy_v2", bytes_of(event_handle(0)));
  held.client.call("cuEventCreate", bytes_of(kNext, uint32_t{2}));
  CHECK(held.client.ask("cuEventQuery", bytes_of(kNext)) == CUDA_SUCCESS);
  held.client.call("cuStreamDestroy_v2", bytes_of(kFirst));
  held.client.call("cuStreamCreateWithPriority",
                   bytes_of(kNextStream, uint32_t{CU_STREAM_NON_BLOCKING}, int32_t{0}));
  held.fill(kNextStream, 100, 7);
  CHECK(held.read(kNextStream, 100) == std::byte{7});
  CHECK(held.client.fake.streams_alive() == 3);
  held.resume();
  CHECK(held.client.ask(Command::synchronize_context, {}) == CUDA_SUCCESS);
  CHECK(held.read(kNextStream, 0) == std::byte{6});
  CHECK(held.client.fake.streams_alive() == 2);
  CHECK(held.client.ask("cuStreamQuery", bytes_of(kFirst)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(held.client.ask("cuEventQuery", bytes_of(kNext)) == CUDA_SUCCESS);
}

TEST_CASE("the legacy stream and blocking streams wait for each other, non-blocking ones do not") {
  Held held(CU_STREAM_DEFAULT);
  held.fill(0, 0, 8);
  held.client.create_stream(2, CU_STREAM_DEFAULT);
  held.fill(stream_handle(2), 100, 9);  // behind the legacy stream
  held.fill(kSecond, 200, 10);
  CHECK(held.read(kSecond, 200) == std::byte{10});
  CHECK(held.client.ask("cuStreamQuery", bytes_of(uint64_t{0})) == CUDA_ERROR_NOT_READY);
  const uint64_t legacy = held.synchronize(0), other = held.synchronize(stream_handle(2));
  CHECK(held.client.silent());
  held.resume();
  CHECK(held.client.receive().header.sequence + held.client.receive().header.sequence == legacy + other);
  CHECK(held.read(kSecond, 0) == std::byte{8});
  CHECK(held.read(kSecond, 100) == std::byte{9});
}

TEST_CASE("a copy that orders all streams delays later work of every stream") {
  Held held;
  std::vector<std::byte> data(64, std::byte{11});
  auto body =
      bytes_of(wire::CopyToDevice{kFirst, held.client.address(0), 64, 64, 1, wire::kCopyOrdersStreams, 0});
  body.insert(body.end(), data.begin(), data.end());
  held.client.send(Command::copy_to_device, body);
  const uint64_t read = held.client.copy_out(kSecond, 0, 1);
  CHECK(held.client.silent());
  held.resume();
  CHECK(held.client.data(read)[0] == std::byte{11});
}

TEST_CASE("a client that waits for every call does not wait for commands that CUDA executes later") {
  Held held;
  CHECK(held.client.ask("cuMemsetD8Async",
                        bytes_of(held.client.address(0), uint8_t{13}, uint64_t{16}, kFirst)) == CUDA_SUCCESS);
  CHECK(held.client.ask("cuEventRecord", bytes_of(event_handle(0), kFirst)) == CUDA_SUCCESS);
  // The error is reported later.
  CHECK(held.client.ask("cuMemsetD8Async", bytes_of(uint64_t{8}, uint8_t{13}, uint64_t{16}, kFirst)) ==
        CUDA_SUCCESS);
  held.resume();
  CHECK(held.client.result(held.synchronize(kFirst)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(held.read(kFirst, 0) == std::byte{13});
}

TEST_CASE("frees count as retired in their order") {
  Held held;
  held.client.map(FakeDriver::kGranularity, FakeDriver::kGranularity);
  const uint64_t late = held.client.send(
      Command::free_memory, bytes_of(wire::FreeMemory{held.client.address(FakeDriver::kGranularity),
                                                      FakeDriver::kGranularity, kFirst}));
  constexpr uint64_t kOther = cuda::make_handle(cuda::Kind::context, 1, 2);
  held.client.send(Command::create_context, bytes_of(wire::CreateContext{kOther, 0, 0}));
  const uint64_t destroy = held.client.send(Command::destroy_context, bytes_of(kOther),
                                            true);  // retires the context's addresses as well
  CHECK(held.client.reply(destroy).header.retired < late);
  held.resume();
  held.client.ask(Command::synchronize_context, {});
  const uint64_t ask = held.synchronize(kSecond);
  CHECK(held.client.reply(ask).header.retired >= destroy);
}

TEST_CASE("destroys a context together with its kept commands") {
  Held held;
  held.fill(kFirst, 0, 12);
  const uint64_t wait = held.synchronize(kFirst);
  const uint64_t reset = held.client.send(Command::reset_primary_context,
                                          bytes_of(wire::PrimaryContext{kContext, 0, 0}), true, 0);
  CHECK(held.client.reply(wait).header.sequence == wait);
  CHECK(held.client.result(reset) == CUDA_SUCCESS);
  CHECK(held.client.finish() == 0);
}

TEST_CASE("20,000 commands behind a host function are executed, and others are answered meanwhile") {
  Held held;
  held.resume();
  held.client.send(Command::host_function, bytes_of(wire::HostFunction{kFirst, 5}));
  CHECK(held.client.receive().header.kind == wire::MessageKind::host_callback);
  for (int i = 0; i < 20'000; ++i) held.fill(kFirst, 0, static_cast<uint8_t>(i));
  const uint64_t wait = held.synchronize(kFirst);
  CHECK(held.client.result(held.synchronize(kSecond)) == CUDA_SUCCESS);
  held.client.send(Command::host_function_done, bytes_of(wire::HostFunctionDone{5, 0}));
  CHECK(held.client.result(wait) == CUDA_SUCCESS);
  CHECK(held.read(kFirst, 0) == std::byte{static_cast<uint8_t>(19'999)});
}

TEST_CASE("ends a session that still has kept commands") {
  Held held;
  for (int i = 0; i < 100; ++i) held.fill(kFirst, 0, 1);
  held.client.record(0, kFirst);
  CHECK(held.client.finish() == 0);
  CHECK(held.client.fake.event_count() == 0);
  CHECK(held.client.fake.streams_alive() == 0);
}
