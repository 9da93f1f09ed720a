// Fuzzes the bulk connections of a worker's session over the fake driver: pieces of announced, unknown and
// cancelled copies, whole, damaged and repeated, from the client and from other servers with right and wrong
// keys, while streams are held and objects are destroyed. The input is a sequence of calls.
//
// Data for a copy must be written inside its rows, and the session must free everything.
#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "protocol/compression/pieces.h"
#include "protocol/peers/proof.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/migration.h"
#include "server/worker/migration/adoption.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"
#include "tests/server/worker/test_client.h"
#include "tests/support/piped_connection.h"
#include "tests/support/recording_connection.h"

using namespace gpupool;
using fuzz::require;
using testing::Pipe;
using testing::PipedConnection;
using testing::RecordingConnection;
using namespace gpupool::worker;
using namespace gpupool::worker::test;

namespace {

constexpr uint64_t kMapped = 4 * FakeDriver::kGranularity;
constexpr std::chrono::milliseconds kMostWait{10};  // for the session to receive from one connection
constexpr const char* kToken = "the session's bulk token";

struct Copy {
  uint64_t sequence = 0;
  uint64_t width = 0, rows = 0;
};

class Attack {
 public:
  explicit Attack(fuzz::Input input) : input_(input) {}

  void run() {
    client_.retain();
    client_.create_stream(0);
    client_.map(0, kMapped);
    for (int calls = 0; !input_.empty() && calls < 100; ++calls) call();
    hold(false);
    await_commands();
    for (const auto& pipe : pipes_) pipe->await_taken(kMostWait);
    client_.finish();
    FakeDriver& fake = client_.fake;
    require(fake.contexts.empty() && fake.events.empty() && fake.pinned.empty() && fake.physical.empty());
    require(fake.misused == 0);
  }

 private:
  // Returns when the session has received all commands, or has ended.
  void await_commands() {
    const uint64_t ping = client_.send(wire::Command::ping, {});
    Message message = client_.receive();
    while (message.header.kind != wire::MessageKind{0} &&
           (message.header.kind != wire::MessageKind::pong || message.header.sequence != ping))
      message = client_.receive();
  }
  void call() {
    switch (input_.below(12)) {
      case 0: return open();
      case 1: return copy(wire::Command::bulk_to_device);
      case 2: return copy(wire::Command::bulk_from_device);
      case 3: {
        const uint64_t sequence = some_copy().sequence;
        return static_cast<void>(
            client_.send(wire::Command::cancel_bulk, bytes_of(wire::CancelBulk{sequence})));
      }
      case 4: return write_key();
      case 5: return write(input_.long_text());
      case 6:
        if (Pipe* const its = pipe()) its->close();
        return;
      case 7: return disturb();
      default: return write_piece();
    }
  }

  // The session's thread: gives the sink, and takes it back at the end.
  void set_sink(BulkSink sink) {
    const std::lock_guard lock(mutex_);
    sink_ = std::move(sink);
    ready_ = true;
    changed_.notify_all();
  }
  void open() {
    if (pipes_.size() >= 12) return;
    auto pipe = std::make_shared<Pipe>();
    pipes_.push_back(pipe);
    std::optional<uint64_t> peer;
    if (input_.below(3) == 0) peer = some_copy().sequence;
    if (peer == wire::kAdoptSequence) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_; });
    if (sink_) sink_(std::make_unique<PipedConnection>(std::move(pipe)), peer, 0);
  }
  Pipe* pipe() {
    return pipes_.empty() ? nullptr : pipes_[input_.below(static_cast<uint32_t>(pipes_.size()))].get();
  }
  Copy some_copy() {
    const uint32_t which = input_.below(static_cast<uint32_t>(copies_.size()) + 1);
    if (which < copies_.size()) return copies_[which];
    return {.sequence = input_.below(4) == 0 ? input_.get<uint64_t>() : client_.next_sequence,
            .width = 100,
            .rows = 1};
  }

  void copy(wire::Command command) {
    const bool one_row = input_.below(2) == 0;
    const uint64_t width = 1 + (one_row ? input_.get<uint16_t>() : input_.get<uint8_t>());
    const uint64_t rows = one_row ? 1 : 1 + input_.below(200);
    const wire::BulkCopy made{
        .stream = input_.below(4) == 0 ? 0 : stream_handle(0),
        .device = client_.address(input_.below(2) == 0 ? 0 : input_.get<uint32_t>() % kMapped),
        .pitch = width + input_.below(32),
        .width = input_.below(32) == 31 ? input_.get<uint64_t>() : width,
        .rows = rows,
        .flags = input_.below(4),
        .reserved = 0};
    const uint64_t sequence = client_.send(command, bytes_of(made), input_.below(4) == 0);
    if (command == wire::Command::bulk_to_device) copies_.push_back({sequence, width, rows});
  }

  void write(std::string_view bytes) {
    if (Pipe* const its = pipe()) its->add(bytes);
  }
  void write_key() {
    const Copy about = some_copy();
    const wire::BulkHeader header{
        .length = sizeof(wire::CopyKey), .flags = wire::kBulkCopyKey, .copy = about.sequence};
    const wire::CopyKey key = peers::copy_key(input_.below(4) == 3 ? "another" : kToken, about.sequence);
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(reinterpret_cast<const char*>(key.data()), key.size());
    write(bytes);
  }
  void write_piece() {
    const Copy about = some_copy();
    const uint64_t piece_bytes = wire::bulk_piece_bytes(about.width, about.rows);
    const uint64_t total = about.width * about.rows;
    uint64_t offset = 0, length = std::min(piece_bytes, total);
    switch (input_.below(8)) {
      case 0: offset = input_.get<uint64_t>(); break;
      case 1: length = 1 + input_.get<uint16_t>(); break;
      default: break;
    }
    const std::string data(length, static_cast<char>(input_.get<uint8_t>()));
    RecordingConnection sender;
    compression::PieceSender pieces(input_.below(2) == 0 ? compression::Policy::off
                                                         : compression::Policy::always);
    const iovec part{const_cast<char*>(data.data()), data.size()};
    require(pieces
                .send(sender,
                      {.length = static_cast<uint32_t>(length), .copy = about.sequence, .offset = offset},
                      {&part, 1})
                .ok());
    if (input_.below(8) == 7) sender.bytes.resize(input_.get<uint16_t>() % sender.bytes.size());
    write(sender.bytes);
  }

  // Holds the streams that exist, or lets them go.
  void hold(bool held) {
    FakeDriver& fake = client_.fake;
    const std::lock_guard lock(fake.mutex);
    for (auto& [context, stream] : fake.contexts) stream->held = held;
    for (auto& stream : fake.streams) {
      if (stream) stream->held = held;
    }
    if (!held) fake.pump_locked();
  }

  // Other events of the copies and of the objects that they use.
  void disturb() {
    switch (input_.below(10)) {
      case 8:
        return static_cast<void>(client_.send(wire::Command::hold_stream,
                                              bytes_of(wire::HoldStream{stream_handle(0), input_.below(3)})));
      case 9:
        return static_cast<void>(
            client_.send(wire::Command::resume_stream, bytes_of(wire::ResumeStream{input_.below(3)})));
      case 0: return hold(true);
      case 1: return hold(false);
      case 2: return static_cast<void>(client_.call("cuStreamDestroy_v2", bytes_of(stream_handle(0))));
      case 3: return client_.create_stream(0);
      case 4: {
        wire::FreeMemory body{};
        body.address = client_.address(0);
        body.size = kMapped;
        return static_cast<void>(client_.send(wire::Command::free_memory, bytes_of(body)));
      }
      case 5: return client_.map(0, kMapped);
      case 6:
        return static_cast<void>(
            client_.send(wire::Command::synchronize_stream, bytes_of(stream_handle(0)), true));
      default:
        // The session waits 10 seconds for copies in a context that is released, and then ends.
        if (!copies_.empty()) return;
        return static_cast<void>(client_.send(wire::Command::release_primary_context,
                                              bytes_of(wire::PrimaryContext{kContext, 0, 0})));
    }
  }

  fuzz::Input input_;
  std::vector<std::shared_ptr<Pipe>> pipes_;
  std::vector<Copy> copies_;
  std::mutex mutex_;
  std::condition_variable changed_;
  BulkSink sink_;
  bool ready_ = false;  // the session has given the sink
  TestClient client_{false, nullptr, 0, false, nullptr, false, {}, {}, [this](SessionStart& start) {
                       start.bulk_token = kToken;
                       start.welcome_bulk = [](transport::Connection&, transport::Deadline, bool) {
                         return Result<void>{};
                       };
                       start.bulk_connections = [this](BulkSink sink) { set_sink(std::move(sink)); };
                     }};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Attack attack(fuzz::Input(data, size));
  attack.run();
  return 0;
}
