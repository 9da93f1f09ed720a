#include "server/suspension/session_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/text/printable.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/migration.h"

namespace gpupool::suspension {
namespace {

using transport::Clock;

constexpr size_t kRecordBytes = 1u << 20;  // a record ends with the command that reaches this size
// Of a worker, between two commands and while it executes one. It may have to compile code.
constexpr std::chrono::seconds kSilentTime{120};
// Times, in milliseconds since 1970, must be numbers of nanoseconds as well, with which poold and pool-admin
// count.
constexpr int64_t kLatestMs = 9'000'000'000'000;

struct CommandHead {
  wire::AdoptedCommand prefix;
  wire::CommandHeader header;
};
static_assert(sizeof(CommandHead) == sizeof(wire::AdoptedCommand) + sizeof(wire::CommandHeader));

// A connection over a copy of the socket.
Result<std::unique_ptr<transport::Connection>> connect_to(int socket) {
  const int copy = ::dup(socket);
  if (copy < 0) return Error{ErrorCode::unavailable, "too many open files"};
  return transport::adopt_stream(copy, "the worker", transport::Options());
}

// Collects whole commands until they are a record.
class Recorder {
 public:
  Recorder(RecordWriter& writer, Budget& budget, std::atomic<uint64_t>& written)
      : writer_(writer), budget_(budget), written_(written) {}

  Result<void> append(RecordKind kind, std::span<const std::byte> payload) {
    const uint64_t size = RecordWriter::size_of(payload.size());
    if (!budget_.take(size))
      return Error{ErrorCode::limit, "suspended sessions use all of the " +
                                         std::to_string(budget_.limit() >> 20) +
                                         " MiB that poold allows them"};
    written_.fetch_add(size);
    return writer_.append(kind, payload);
  }
  // Receives the next command. Returns true if it is the last one.
  Result<bool> take_command(transport::Connection& worker, transport::Deadline deadline) {
    CommandHead head{};
    if (auto got = transport::receive_exact(worker, std::as_writable_bytes(std::span(&head, 1)), deadline);
        !got)
      return got.error();
    if (head.header.length > wire::kMaxBodyBytes || head.prefix.reply_bytes > wire::kMaxBodyBytes)
      return Error{ErrorCode::malformed, "the worker has sent a malformed command"};
    const size_t at = commands_.size(), rest = size_t{head.header.length} + head.prefix.reply_bytes;
    commands_.resize(at + sizeof head + rest);
    std::memcpy(commands_.data() + at, &head, sizeof head);
    const auto body = std::span(commands_).subspan(at + sizeof head);
    if (auto got = transport::receive_exact(worker, body, Clock::now() + kSilentTime); !body.empty() && !got)
      return got.error();
    end_.set_commands(end_.commands() + 1);
    end_.set_bytes(end_.bytes() + sizeof head + rest);
    const bool last = head.header.id == static_cast<uint16_t>(wire::Command::end_migration);
    if (commands_.size() < kRecordBytes && !last) return false;
    if (auto added = append(RecordKind::commands, commands_); !added) return added.error();
    commands_.clear();
    return last;
  }
  Result<void> finish() {
    const std::string end = end_.SerializeAsString();
    return append(RecordKind::end, std::as_bytes(std::span(end)));
  }

 private:
  RecordWriter& writer_;
  Budget& budget_;
  std::atomic<uint64_t>& written_;
  std::vector<std::byte> commands_;
  End end_;
};

// A worker first sends the reply to a hello, as to another server. poold has sent none, and drops the reply.
Result<void> skip_hello(transport::Connection& worker) {
  const auto deadline = Clock::now() + kSilentTime;
  wire::Preamble preamble;
  if (auto got = transport::receive_exact(worker, std::as_writable_bytes(std::span(&preamble, 1)), deadline);
      !got)
    return got;
  if (preamble.length > wire::kMaxHelloBytes)
    return Error{ErrorCode::malformed, "the worker's reply to the hello is malformed"};
  std::vector<std::byte> reply(preamble.length);
  if (reply.empty()) return {};
  return transport::receive_exact(worker, reply, deadline);
}

Result<void> receive_answer(transport::Connection& worker) {
  const auto deadline = Clock::now() + kSilentTime;
  wire::MessageHeader header;
  if (auto got = transport::receive_exact(worker, std::as_writable_bytes(std::span(&header, 1)), deadline);
      !got)
    return got;
  if (header.kind != wire::MessageKind::reply || header.length > wire::kMaxAdoptReasonBytes)
    return Error{ErrorCode::malformed, "the worker's answer is malformed"};
  std::string reason(header.length, '\0');
  if (!reason.empty()) {
    auto got = transport::receive_exact(worker, std::as_writable_bytes(std::span(reason)), deadline);
    if (!got) return got;
  }
  if (header.result != 0) return Error{ErrorCode::refused, printable_message(reason)};
  return {};
}

// If the worker has answered before the end, its answer says more than the failure to send.
Result<void> send(transport::Connection& worker, std::span<const std::byte> bytes) {
  using Ready = transport::Connection::Ready;
  const auto stop = Clock::now() + kSilentTime;
  while (!bytes.empty()) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const auto sent = worker.send_some({&part, 1});
    if (sent && *sent != 0) {
      bytes = bytes.subspan(*sent);
      continue;
    }
    const auto ready = sent ? worker.wait(true, true, stop) : Result<Ready>(Ready::receive);
    if (!ready) return ready.error();
    if (*ready == Ready::none) return Error{ErrorCode::lost, "the worker does not read"};
    if (*ready == Ready::send) continue;
    auto answer = receive_answer(worker);
    if (answer) return Error{ErrorCode::malformed, "the worker has answered before the end"};
    return !sent && answer.error().code != ErrorCode::refused ? sent.error() : answer.error();
  }
  return {};
}

bool is_time(int64_t since_1970_ms) {
  return since_1970_ms >= 0 && since_1970_ms <= kLatestMs;
}

Error unexpected_record() {
  return {ErrorCode::malformed, "the file of the suspended session has an unexpected record"};
}

// Sends each record of commands once the next one has been found genuine, so that a cut or altered file never
// makes a complete session.
Result<void> send_commands(RecordReader& reader, transport::Connection& worker, uint64_t* bytes, End* end) {
  std::vector<std::byte> held;
  while (true) {
    const auto record = reader.next();
    if (!record) return record.error();
    if (record->kind == RecordKind::end) {
      const auto payload = record->payload;
      const auto at_end = reader.at_end();
      if (!at_end) return at_end.error();
      if (!*at_end || !end->ParseFromArray(payload.data(), static_cast<int>(payload.size())) ||
          end->bytes() != *bytes)
        return unexpected_record();
      return send(worker, held);
    }
    if (record->kind != RecordKind::commands) return unexpected_record();
    *bytes += record->payload.size();
    if (auto sent = send(worker, held); !sent) return sent;
    held.assign(record->payload.begin(), record->payload.end());
  }
}

}  // namespace

Result<void> store_session(int socket, int file, const Header& header, const std::optional<Secret>& secret,
                           Budget& budget, std::atomic<uint64_t>& written) {
  if (!budget.take(RecordFormat::kPreambleBytes))
    return Error{ErrorCode::limit, "suspended sessions use all of the space that poold allows them"};
  written.fetch_add(RecordFormat::kPreambleBytes);
  const auto worker = connect_to(socket);
  if (!worker) return worker.error();
  auto writer = RecordWriter::begin(file, secret);
  if (!writer) return writer.error();
  Recorder recorder(*writer, budget, written);
  const std::string first = header.SerializeAsString();
  if (auto added = recorder.append(RecordKind::header, std::as_bytes(std::span(first))); !added) return added;
  // The first command comes when the client stops its program.
  for (transport::Deadline deadline; true; deadline = Clock::now() + kSilentTime) {
    const auto last = recorder.take_command(**worker, deadline);
    if (!last) return last.error();
    if (*last) return recorder.finish();
  }
}

void answer_worker(int socket, const Result<void>& stored) {
  const std::string reason = stored ? "" : stored.error().message.substr(0, wire::kMaxAdoptReasonBytes);
  wire::MessageHeader header{.length = static_cast<uint32_t>(reason.size()),
                             .kind = wire::MessageKind::reply,
                             .result = stored ? 0 : static_cast<int32_t>(CUDA_ERROR_NOT_SUPPORTED)};
  std::string answer(reinterpret_cast<const char*>(&header), sizeof header);
  answer += reason;
  // There is room for the only bytes that are ever sent this way.
  [[maybe_unused]] const ssize_t sent =
      ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Result<Header> read_header(RecordReader& reader) {
  const auto record = reader.next();
  if (!record) return record.error();
  Header header;
  if (record->kind != RecordKind::header ||
      !header.ParseFromArray(record->payload.data(), static_cast<int>(record->payload.size())))
    return unexpected_record();
  if (header.protocol_version() != wire::kPeerProtocolVersion)
    return Error{ErrorCode::malformed,
                 "the session was suspended by another release of gpupool; use the same one"};
  if (header.session_id().size() != 16 || header.resume_key().size() != 32 || !is_time(header.started_ms()) ||
      !is_time(header.suspended_ms()))
    return unexpected_record();
  return header;
}

Result<void> restore_session(RecordReader& reader, int socket) {
  const auto worker = connect_to(socket);
  if (!worker) return worker.error();
  if (auto skipped = skip_hello(**worker); !skipped) return skipped;
  uint64_t bytes = 0;
  End end;
  if (auto sent = send_commands(reader, **worker, &bytes, &end); !sent) return sent;
  return receive_answer(**worker);
}

}  // namespace gpupool::suspension
