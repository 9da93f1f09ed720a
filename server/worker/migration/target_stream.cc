#include "server/worker/migration/target_stream.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "protocol/calls/handles.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/wire/images.h"
#include "protocol/wire/reader.h"

namespace gpupool::worker {
namespace {

using Id = wire::Command;
using transport::Clock;

constexpr std::chrono::seconds kTargetTime{60};  // without progress, and for its last copies
constexpr uint64_t kMostAddedBytes = 1u << 30;   // a program that makes objects faster than they travel
// Uploads of the target's session get these numbers; the client's own start at 0 and come later.
constexpr uint32_t kUploadGeneration = 0xfffff;

}  // namespace

void TargetStream::add(OutgoingCommand command, bool counts) {
  const uint64_t bytes = counts ? sizeof command + command.body.size() + command.expected.size() +
                                      (command.image ? command.image->bytes().size() : 0)
                                : 0;
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  added_bytes_ += bytes;
  too_much_ |= added_bytes_ > kMostAddedBytes;
  if (!too_much_) added_.push_back({std::move(command), bytes});
}

void TargetStream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  added_.clear();
  if (connection_) connection_->close();
}

void TargetStream::take(std::unique_ptr<transport::Connection> connection) {
  const std::lock_guard lock(mutex_);
  connection_ = std::move(connection);
  if (closed_) connection_->close();
  sender_ = std::make_unique<CommandSender>(*connection_, kTargetTime);
}

Result<void> TargetStream::send_added(size_t most) {
  for (std::optional<size_t> left;;) {
    Added next;
    {
      const std::lock_guard lock(mutex_);
      if (too_much_) return Error{ErrorCode::limit, "the program makes objects faster than they can be sent"};
      if (!left) left = std::min(most, added_.size());
      if (*left == 0 || added_.empty()) return {};
      --*left;
      next = std::move(added_.front());
      added_.pop_front();
      added_bytes_ -= next.bytes;
    }
    if (auto sent = send(next.command); !sent) return sent;
  }
}

Result<void> TargetStream::send(const OutgoingCommand& command) {
  if (command.image) return send_load(command);
  return send(command.header, command.body, {}, command.expected, command.checks);
}

Result<void> TargetStream::send(wire::Command id, uint64_t context, std::span<const std::byte> body,
                                std::span<const std::byte> more) {
  return send({.id = static_cast<uint16_t>(id), .context = context}, body, more, {}, false);
}

Result<void> TargetStream::send(wire::CommandHeader header, std::span<const std::byte> body,
                                std::span<const std::byte> more, std::span<const std::byte> expected,
                                bool checks) {
  header.sequence = 0;  // the target reports to the client which frees are done by their numbers
  auto sent = sender_->send(header, body, more, expected, checks);
  sent_bytes_.store(sender_->sent(), std::memory_order_relaxed);
  if (!sent) return explain(sent.error());
  return sent;
}

Result<void> TargetStream::send_load(const OutgoingCommand& command) {
  const uint64_t upload = cuda::make_handle(cuda::Kind::upload, kUploadGeneration, ++uploads_);
  const auto image = command.image->bytes();
  for (size_t at = 0; at < image.size(); at += wire::kBulkChunkBytes) {
    const auto part = image.subspan(at, std::min<size_t>(wire::kBulkChunkBytes, image.size() - at));
    auto sent = send(Id::upload_part, command.header.context, wire::UploadPart{upload, image.size()}, part);
    if (!sent) return sent;
  }
  wire::Reader reader(command.body);
  const auto send_with_rest = [&](const auto& body) {
    const auto rest = reader.get_bytes(reader.remaining());
    return send(command.header, std::as_bytes(std::span(&body, 1)), rest, {}, false);
  };
  if (command.header.id == static_cast<uint16_t>(Id::add_link_input)) {
    auto input = reader.get<wire::AddLinkInput>();
    input.upload = upload;
    return send_with_rest(input);
  }
  auto load = reader.get<wire::LoadImage>();
  if (load.upload == 0) (void)reader.get<wire::ImageName>();
  load.upload = upload;
  return send_with_rest(load);
}

transport::Deadline TargetStream::answer_by() const {
  if (to_file_) return deadline_;  // a file system may take its time
  const auto patient = Clock::now() + kTargetTime;
  return deadline_ ? std::min(*deadline_, patient) : patient;
}

Error TargetStream::from_target(ErrorCode code, const std::string& reason) const {
  return {code, to_file_ ? reason : "the other server: " + reason};
}

Error TargetStream::explain(const Error& error) {
  if (!sender_->answered()) return error;
  const auto answer = receive_answer(*connection_, answer_by());
  if (!answer) return from_target(answer.error().code, answer.error().message);
  return from_target(ErrorCode::refused, answer->reason);
}

Result<void> TargetStream::finish(const wire::EndMigration& end) {
  if (auto sent = send(Id::end_migration, 0, end); !sent) return sent;
  const auto answer = receive_answer(*connection_, answer_by());
  if (!answer) return from_target(answer.error().code, answer.error().message);
  if (answer->result != CUDA_SUCCESS) return from_target(ErrorCode::refused, answer->reason);
  return {};
}

}  // namespace gpupool::worker
