// Tests copies that involve several servers against fake workers: through the program, from server to server
// with the key of one copy, and what they do when a server refuses or fails.
#include "client/copies/server_copy.h"

#include <algorithm>

#include "protocol/calls/row_ids.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/copies.h"
#include "tests/client/fake_session.h"
#include "tests/client/pattern.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using namespace gpupool::testing;
using wire::Command;

namespace {

constexpr uint64_t kSource = 0x10000, kTarget = 0x20000;
constexpr uint64_t kPiece = 4u << 20;  // of copies through the program

// A server with a session and a context, whose device memory from kSource on is `memory`.
struct End {
  explicit End(const std::string& id = "", const std::function<void(hello::HelloReply&)>& change = {})
      : session((prepare(id, change), open_session(worker))), context(make_context(session)) {
    worker.on(Command::copy_from_device, [this](const ReceivedCommand& command) { send(command); });
  }

  CopyEnd at(uint64_t address, uint64_t pitch = 0, uint64_t slice = 0) {
    return {true, address, pitch, slice, &context};
  }
  // All bytes that were copied to this server from kTarget on, in the order of their addresses. They must
  // have come in order and without gaps.
  std::string received() const {
    std::string data;
    for (const auto& command : worker.received(Command::copy_to_device)) {
      CHECK(command.as<wire::CopyToDevice>().destination == kTarget + data.size());
      data += command.body.substr(sizeof(wire::CopyToDevice));
    }
    return data;
  }
  size_t count(Command command) const { return worker.received(command).size(); }
  std::string id() const { return worker.offer.session_id; }

  FakeWorker worker;
  std::string memory;
  Session& session;
  Context& context;

 private:
  void prepare(const std::string& id, const std::function<void(hello::HelloReply&)>& change) {
    if (!id.empty()) {
      worker.offer.session_id = std::string(16, id[0]);
      worker.offer.bulk_token = "token of " + id;
      worker.offer.peer_protocol = wire::kPeerProtocolVersion;
    }
    if (change) change(worker.offer);
  }
  void send(const ReceivedCommand& command) {
    const auto asked = command.as<wire::CopyFromDevice>();
    std::string packed;
    for (uint64_t row = 0; row < asked.rows; ++row)
      packed += memory.substr(asked.source - kSource + row * asked.pitch, asked.width);
    for (size_t at = 0; at < packed.size(); at += 1u << 20)
      worker.send(wire::MessageKind::device_data, command.header.sequence,
                  bytes_of(wire::DeviceData{at}) + packed.substr(at, 1u << 20));
    worker.reply(command.header.sequence);
  }
};

CopyBox line(const CopyEnd& from, const CopyEnd& to, uint64_t bytes) {
  return {from, to, bytes, 1, 1};
}

CopyEnd host(std::string& memory, uint64_t pitch = 0, uint64_t slice = 0) {
  return {false, reinterpret_cast<uintptr_t>(memory.data()), pitch, slice, nullptr};
}

CUresult copy(End& stream_of, const CopyBox& box) {
  return copy_between_servers(stream_of.context, nullptr, box, true);
}

}  // namespace

TEST_CASE("server copy: passes through the program in pieces where servers do not connect") {
  End from, to;
  from.memory = pattern(2 * kPiece + 5);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), from.memory.size())) == CUDA_SUCCESS);
  CHECK(from.count(Command::copy_from_device) == 3);
  CHECK(from.count(Command::copy_to_peer) == 0);
  CHECK((to.received() == from.memory));
  // Behind the present work of both, and done when the call returns.
  CHECK(from.worker.received().front().header.id == static_cast<uint16_t>(Command::synchronize_context));
  CHECK(to.worker.received().front().header.id == static_cast<uint16_t>(Command::synchronize_context));
  CHECK(to.worker.received().back().header.id == static_cast<uint16_t>(Command::synchronize_stream));
}

TEST_CASE("server copy: rows and slices keep their pitches on both sides") {
  End from, to;
  constexpr uint64_t kWidth = 10, kRows = 3, kPitch = 16, kSlice = 100, kToPitch = 32, kToSlice = 200;
  from.memory = pattern(2 * kSlice);
  CHECK(copy(from, {from.at(kSource, kPitch, kSlice), to.at(kTarget, kToPitch, kToSlice), kWidth, kRows,
                    2}) == CUDA_SUCCESS);
  const auto commands = to.worker.received(Command::copy_to_device);
  REQUIRE(commands.size() == 2);
  for (uint64_t z = 0; z < 2; ++z) {
    const auto head = commands[z].as<wire::CopyToDevice>();
    CHECK(head.destination == kTarget + z * kToSlice);
    CHECK(head.pitch == kToPitch);
    CHECK(head.width == kWidth);
    REQUIRE(head.rows == kRows);
    for (uint64_t row = 0; row < kRows; ++row)
      CHECK(commands[z].body.substr(sizeof head + row * kWidth, kWidth) ==
            from.memory.substr(z * kSlice + row * kPitch, kWidth));
  }
}

TEST_CASE("server copy: copies between the program's memory and another server's device than the stream's") {
  End stream, device;
  SECTION("to the device") {
    std::string memory = pattern(3u << 20);
    CHECK(copy(stream, line(host(memory), device.at(kTarget), memory.size())) == CUDA_SUCCESS);
    CHECK((device.received() == memory));
    CHECK(device.worker.received().back().header.id == static_cast<uint16_t>(Command::synchronize_stream));
  }
  SECTION("from the device, slice by slice") {
    device.memory = pattern(4000);
    std::string memory(2000, '.');
    CHECK(copy(stream, {device.at(kSource, 100, 2000), host(memory, 50, 1000), 10, 20, 2}) == CUDA_SUCCESS);
    std::string expected(2000, '.');
    for (size_t z = 0; z < 2; ++z)
      for (size_t row = 0; row < 20; ++row)
        expected.replace(z * 1000 + row * 50, 10, device.memory, z * 2000 + row * 100, 10);
    CHECK(memory == expected);
  }
  SECTION("an error of the device's server") {
    device.worker.answer(Command::synchronize_stream, "", CUDA_ERROR_LAUNCH_FAILED);
    std::string memory(100, 'x');
    CHECK(copy(stream, line(host(memory), device.at(kTarget), 100)) == CUDA_ERROR_LAUNCH_FAILED);
  }
  CHECK(stream.count(Command::copy_to_device) + stream.count(Command::copy_from_device) == 0);
}

TEST_CASE("server copy: an error ends a copy through the program, and nothing more is sent") {
  End from, to;
  from.memory = pattern(3 * kPiece);
  const CopyBox box = line(from.at(kSource), to.at(kTarget), from.memory.size());
  SECTION("of the source, before the data") {
    from.worker.on(Command::copy_from_device, [&](const ReceivedCommand& command) {
      from.worker.reply(command.header.sequence, "", CUDA_ERROR_ILLEGAL_ADDRESS);
    });
    from.worker.answer(Command::synchronize_stream, "", CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(copy(from, box) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(to.count(Command::copy_to_device) == 0);
  }
  SECTION("of the target, at the end") {
    to.worker.answer(Command::synchronize_stream, "", CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(copy(from, box) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK((to.received() == from.memory));
  }
  SECTION("of the context of the target, before the copy") {
    to.worker.answer(Command::synchronize_context, "", CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(copy(from, box) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(from.count(Command::copy_from_device) == 0);
  }
}

TEST_CASE("server copy: a session that has failed fails the copy at once") {
  End from, to;
  to.worker.close();
  REQUIRE(synchronize_context(to.context) == Session::failure());
  for (const bool wait : {false, true}) {
    CHECK(copy_between_servers(from.context, nullptr, line(from.at(kSource), to.at(kTarget), 100), wait) ==
          Session::failure());
  }
  CHECK(from.worker.received().empty());
}

TEST_CASE("server copy: the source's server gets the key of this copy and sends to the target's") {
  End from("a"), to("b");
  from.memory = pattern(100);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 5 * kPiece)) == CUDA_SUCCESS);
  const auto announced = to.worker.await_command(Command::bulk_to_device);
  const auto rows = announced.as<wire::BulkCopy>();
  CHECK(rows.device == kTarget);
  CHECK(rows.width * rows.rows == 5 * kPiece);
  const auto sent = from.worker.await_command(Command::copy_to_peer).as<wire::CopyToPeer>();
  CHECK(sent.rows.device == kSource);
  CHECK(sent.rows.width * sent.rows.rows == 5 * kPiece);
  CHECK(sent.target.port == to.worker.endpoint().port);
  CHECK(sent.target.copy == announced.header.sequence);
  CHECK(sent.target.key == peers::copy_key("token of b", announced.header.sequence));
  CHECK(std::equal(sent.target.session_id.begin(), sent.target.session_id.end(), to.id().begin()));
  CHECK(from.count(Command::copy_from_device) == 0);
  CHECK(to.count(Command::copy_to_device) == 0);
  CHECK(to.worker.received().back().header.id == static_cast<uint16_t>(Command::synchronize_stream));
}

TEST_CASE("server copy: takes the way through the program for good if the servers cannot connect") {
  End from("a"), to("b");
  from.memory = pattern(100);
  from.worker.answer(Command::copy_to_peer, "", CUDA_ERROR_NOT_SUPPORTED);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 100)) == CUDA_SUCCESS);
  const auto announced = to.worker.await_command(Command::bulk_to_device);
  // The target must not wait for data that does not come.
  CHECK(to.worker.await_command(Command::cancel_bulk).as<wire::CancelBulk>().copy ==
        announced.header.sequence);
  CHECK(to.received() == from.memory);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 50)) == CUDA_SUCCESS);
  CHECK(from.count(Command::copy_to_peer) == 1);
}

TEST_CASE("server copy: a server that cannot be reached does not keep copies from another one") {
  End from("a"), to("b"), other("c");
  from.memory = pattern(100);
  from.worker.answer(Command::copy_to_peer, "", CUDA_ERROR_NOT_SUPPORTED);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 100)) == CUDA_SUCCESS);
  from.worker.answer(Command::copy_to_peer, "");
  CHECK(copy(from, line(from.at(kSource), other.at(kTarget), 100)) == CUDA_SUCCESS);
  CHECK(from.count(Command::copy_to_peer) == 2);
  CHECK(other.count(Command::copy_to_device) == 0);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 100)) == CUDA_SUCCESS);
  CHECK(from.count(Command::copy_to_peer) == 2);
  // The other direction has not been tried.
  CHECK(copy(to, line(to.at(kSource), from.at(kTarget), 100)) == CUDA_SUCCESS);
  CHECK(to.count(Command::copy_to_peer) == 1);
}

TEST_CASE("server copy: takes the way through the program once if the servers' connection breaks") {
  End from("a"), to("b");
  from.memory = pattern(100);
  from.worker.answer(Command::copy_to_peer, "", CUDA_ERROR_NOT_READY);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 100)) == CUDA_SUCCESS);
  CHECK(to.count(Command::cancel_bulk) == 1);
  CHECK(to.received() == from.memory);
  from.worker.answer(Command::copy_to_peer, "");
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 100)) == CUDA_SUCCESS);
  CHECK(from.count(Command::copy_to_peer) == 2);
  CHECK(to.count(Command::copy_to_device) == 1);
}

TEST_CASE("server copy: a fault of the source's context is no reason for another way") {
  End from("a"), to("b");
  from.worker.answer(Command::copy_to_peer, "", CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 100)) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(from.count(Command::copy_from_device) == 0);
  CHECK(to.worker.await_command(Command::cancel_bulk).as<wire::CancelBulk>().copy != 0);
}

TEST_CASE("server copy: servers connect only if both speak the same protocol and the target has a token") {
  const std::string reason = GENERATE("source's version", "target's version", "token", "session id");
  INFO(reason);
  End from("a", [&](hello::HelloReply& offer) {
    if (reason == "source's version") offer.peer_protocol += 1;
  });
  End to("b", [&](hello::HelloReply& offer) {
    if (reason == "target's version") offer.peer_protocol += 1;
    if (reason == "token") offer.bulk_token.clear();
    if (reason == "session id") offer.session_id = "short";
  });
  from.memory = pattern(100);
  CHECK(copy(from, line(from.at(kSource), to.at(kTarget), 100)) == CUDA_SUCCESS);
  CHECK(from.count(Command::copy_to_peer) == 0);
  CHECK(to.count(Command::bulk_to_device) == 0);
  CHECK(to.received() == from.memory);
}

TEST_CASE("server copy: both ends on one server are copied there, although the stream is elsewhere") {
  End stream, both;
  CHECK(copy(stream, line(both.at(kSource), both.at(kTarget), 100)) == CUDA_SUCCESS);
  CHECK_NOTHROW(both.worker.await_command(cuda::row_id::cuMemcpyDtoDAsync_v2));
  CHECK(both.worker.received().back().header.id == static_cast<uint16_t>(Command::synchronize_stream));
  CHECK(copy(stream, {both.at(kSource, 16, 100), both.at(kTarget, 32, 200), 10, 3, 2}) == CUDA_SUCCESS);
  CHECK_NOTHROW(both.worker.await_command(cuda::row_id::cuMemcpy2DAsync_v2, 1));  // a slice each
  CHECK(both.count(Command::copy_from_device) + both.count(Command::copy_to_device) == 0);
}
