// Tests copies on the command connection against a fake worker: how they are cut, packed and flagged, and
// what wrong data does.
#include "client/copies/transfer.h"

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

constexpr uint64_t kPart = wire::kBulkChunkBytes;

struct Line {
  FakeWorker worker;
  Session& session = open_session(worker);
  Context& context = make_context(session);

  CUresult to_device(const std::string& data, const Rows& rows, CopyOrder order = CopyOrder::in_stream) {
    const CUresult result =
        copy_to_device(session, context, nullptr, 0x10000, data.data(), rows, order, Source::reusable);
    session.queue().flush();
    return result;
  }
  CUresult from_device(std::string& memory, const Rows& rows) {
    return copy_from_device(session, context, nullptr, memory.data(), 0x10000, rows, true);
  }
  // Answers copies from the device with the data in messages of `part` bytes, and then the result.
  void serve(const std::string& data, size_t part, CUresult result = CUDA_SUCCESS) {
    worker.on(Command::copy_from_device, [this, data, part, result](const ReceivedCommand& command) {
      for (size_t at = 0; at < data.size(); at += part) send_data(command, at, data.substr(at, part));
      worker.reply(command.header.sequence, "", result);
    });
  }
  void send_data(const ReceivedCommand& command, uint64_t offset, const std::string& bytes) {
    worker.send(wire::MessageKind::device_data, command.header.sequence,
                bytes_of(wire::DeviceData{offset}) + bytes);
  }
};

std::string data_of(const ReceivedCommand& command) {
  return command.body.substr(sizeof(wire::CopyToDevice));
}

}  // namespace

TEST_CASE("transfer: a long row is sent in parts, of which the last orders the streams") {
  Line line;
  const std::string data = pattern(2 * kPart + 5);
  CHECK(line.to_device(data, make_rows(data.size(), 1, 0, 0), CopyOrder::before_all) == CUDA_SUCCESS);
  (void)line.worker.await_command(Command::copy_to_device, 2);
  const auto commands = line.worker.received(Command::copy_to_device);
  REQUIRE(commands.size() == 3);
  std::string received;
  for (const auto& command : commands) {
    const auto head = command.as<wire::CopyToDevice>();
    CHECK(head.destination == 0x10000 + received.size());
    CHECK(head.rows == 1);
    CHECK(head.width == data_of(command).size());
    received += data_of(command);
    CHECK(head.flags == (received.size() == data.size() ? wire::kCopyOrdersStreams : 0));
    CHECK(command.header.context == line.context.handle);
  }
  CHECK(received == data);
}

TEST_CASE("transfer: flags say how a copy is ordered") {
  Line line;
  const Rows row = make_rows(8, 1, 0, 0);
  CHECK(line.to_device("8 bytes.", row) == CUDA_SUCCESS);
  CHECK(line.to_device("8 bytes.", row, CopyOrder::before_all) == CUDA_SUCCESS);
  CHECK(line.to_device("8 bytes.", row, CopyOrder::passes_others) == CUDA_SUCCESS);
  const uint32_t expected[] = {0, wire::kCopyOrdersStreams, wire::kCopyPassesOthers};
  for (size_t i = 0; i < 3; ++i)
    CHECK(line.worker.await_command(Command::copy_to_device, i).as<wire::CopyToDevice>().flags ==
          expected[i]);
}

TEST_CASE("transfer: short rows are packed, as many in a command as fit") {
  Line line;
  const uint64_t width = 3000, host_pitch = 3100, device_pitch = 4096, rows = 500;
  const std::string data = pattern(host_pitch * rows);
  CHECK(line.to_device(data, make_rows(width, rows, host_pitch, device_pitch)) == CUDA_SUCCESS);
  (void)line.worker.await_command(Command::copy_to_device, 1);
  uint64_t row = 0;
  bool same = true;
  for (const auto& command : line.worker.received(Command::copy_to_device)) {
    const auto head = command.as<wire::CopyToDevice>();
    CHECK(head.destination == 0x10000 + row * device_pitch);
    CHECK(head.pitch == device_pitch);
    CHECK(head.width == width);
    CHECK(uint64_t{head.width} * head.rows <= kPart);
    const std::string packed = data_of(command);
    REQUIRE(packed.size() == uint64_t{head.width} * head.rows);
    for (uint32_t i = 0; i < head.rows; ++i, ++row)
      same &= packed.compare(i * width, width, data, row * host_pitch, width) == 0;
  }
  CHECK(row == rows);
  CHECK(same);
}

TEST_CASE("transfer: rows without gaps on both sides are one row") {
  const Rows rows = make_rows(100, 7, 100, 100);
  CHECK(rows.count == 1);
  CHECK(rows.width == 700);
  CHECK(make_rows(100, 7, 100, 128).count == 7);
}

TEST_CASE("transfer: data from the device goes to its rows only") {
  Line line;
  const size_t part = GENERATE(7, 1000, 1 << 20);
  const uint64_t width = 100, pitch = 128, rows = 40;
  const std::string data = pattern(width * rows);
  line.serve(data, part);
  std::string memory(pitch * rows, '.');
  CHECK(line.from_device(memory, make_rows(width, rows, pitch, 512)) == CUDA_SUCCESS);
  const auto head = line.worker.await_command(Command::copy_from_device).as<wire::CopyFromDevice>();
  CHECK(head.source == 0x10000);
  CHECK(head.pitch == 512);
  CHECK(head.width == width);
  CHECK(head.rows == rows);
  for (uint64_t row = 0; row < rows; ++row) {
    REQUIRE(memory.compare(row * pitch, width, data, row * width, width) == 0);
    REQUIRE(memory.compare(row * pitch + width, pitch - width, std::string(pitch - width, '.')) == 0);
  }
}

TEST_CASE("transfer: returns the error of a copy from the device") {
  Line line;
  line.serve("", 1, CUDA_ERROR_INVALID_VALUE);
  std::string memory(100, '.');
  CHECK(line.from_device(memory, make_rows(100, 1, 0, 0)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(memory == std::string(100, '.'));
}

TEST_CASE("transfer: data outside a copy fails the session and is not written") {
  std::string memory(300, '.');  // the copy has the 100 bytes in the middle
  std::function<void(const ReceivedCommand&)> misbehave;
  Line line;
  SECTION("behind the end") {
    misbehave = [&](const ReceivedCommand& command) { line.send_data(command, 90, std::string(11, 'x')); };
  }
  SECTION("at an offset that overflows") {
    misbehave = [&](const ReceivedCommand& command) { line.send_data(command, ~0ull - 3, "xxxxxxxx"); };
  }
  SECTION("for another command") {
    misbehave = [&](const ReceivedCommand& command) {
      ReceivedCommand other = command;
      ++other.header.sequence;
      line.send_data(other, 0, "xxxxxxxx");
    };
  }
  line.worker.on(Command::copy_from_device, [&](const ReceivedCommand& command) {
    misbehave(command);
    line.worker.reply(command.header.sequence);
  });
  CHECK(copy_from_device(line.session, line.context, nullptr, memory.data() + 100, 0x10000,
                         make_rows(100, 1, 0, 0), true) == Session::failure());
  CHECK(line.session.failed());
  CHECK(memory == std::string(300, '.'));
}

TEST_CASE("transfer: waits for room while the server reports a long backlog") {
  Line line;
  const auto report_backlog = [&] {
    wire::Buffer reply;
    REQUIRE(line.session.call(Command::await_barriers, nullptr, wire::SynchronizeStream{}, reply) ==
            CUDA_SUCCESS);
  };
  line.worker.on(Command::await_barriers, [&](const ReceivedCommand& command) {
    line.worker.send(wire::MessageKind::reply, command.header.sequence, "", CUDA_SUCCESS, 0,
                     wire::kSendAwaitRoom);
  });
  report_backlog();
  REQUIRE(line.session.receiver().backlog_long());
  const Rows row = make_rows(8, 1, 0, 0);
  CHECK(line.to_device("8 bytes.", row) == CUDA_SUCCESS);
  CHECK(line.worker.received(Command::await_room).size() == 1);
  CHECK_FALSE(line.session.receiver().backlog_long());  // the reply of await_room has no flag
  CHECK(line.to_device("8 bytes.", row) == CUDA_SUCCESS);
  CHECK(line.worker.received(Command::await_room).size() == 1);
  report_backlog();
  CHECK(line.to_device("8 bytes.", row, CopyOrder::passes_others) == CUDA_SUCCESS);
  CHECK(line.worker.received(Command::await_room).size() == 1);
}
