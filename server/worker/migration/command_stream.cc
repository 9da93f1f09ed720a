#include "server/worker/migration/command_stream.h"

#include <algorithm>
#include <string>

#include "common/text/printable.h"
#include "protocol/calls/errors.h"
#include "protocol/transport/gather.h"

namespace gpupool::worker {
namespace {

iovec part_of(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

template <class T>
iovec part_of(T& value) {
  return {&value, sizeof value};
}

}  // namespace

Result<void> CommandSender::send(wire::CommandHeader header, std::span<const std::byte> body,
                                 std::span<const std::byte> more, std::span<const std::byte> expected,
                                 bool checks) {
  wire::AdoptedCommand prefix{static_cast<uint32_t>(expected.size()), checks ? 1u : 0u};
  header.flags = 0;
  header.length = static_cast<uint32_t>(body.size() + more.size());
  iovec parts[] = {part_of(prefix), part_of(header), part_of(body), part_of(more), part_of(expected)};
  std::span<iovec> rest(parts);
  for (transport::drop_sent(rest, 0); !rest.empty();) {
    const auto sent = connection_.send_some(rest);
    if (!sent) return sent.error();
    sent_ += *sent;
    if (*sent == 0) {
      if (auto room = wait_for_room(); !room) return room;
      continue;
    }
    transport::drop_sent(rest, *sent);
  }
  return {};
}

Result<void> CommandSender::wait_for_room() {
  using Ready = transport::Connection::Ready;
  const auto patient = transport::Clock::now() + silent_;
  const auto ready = connection_.wait(true, true, deadline_ ? std::min(*deadline_, patient) : patient);
  if (!ready) return ready.error();
  answered_ = *ready == Ready::receive || *ready == Ready::both;
  if (answered_) return Error{ErrorCode::refused, "the other server has answered before the end"};
  if (*ready == Ready::none) return Error{ErrorCode::lost, "the other server does not read"};
  return {};
}

Result<CommandReceiver::Received> CommandReceiver::next(transport::Deadline deadline) {
  struct {
    wire::AdoptedCommand prefix;
    wire::CommandHeader header;
  } head{};
  static_assert(sizeof head == sizeof head.prefix + sizeof head.header);
  if (auto got = transport::receive_exact(connection_, std::as_writable_bytes(std::span(&head, 1)), deadline);
      !got)
    return got.error();
  if (head.header.length > wire::kMaxBodyBytes || head.prefix.reply_bytes > wire::kMaxBodyBytes ||
      head.prefix.checks > 1 || head.header.flags != 0)
    return Error{ErrorCode::malformed, "a command of the other server is malformed"};
  buffer_.resize(size_t{head.header.length} + head.prefix.reply_bytes);
  if (auto got = transport::receive_exact(connection_, buffer_, deadline); !buffer_.empty() && !got)
    return got.error();
  const std::span<const std::byte> bytes(buffer_);
  return Received{head.header, bytes.first(head.header.length), bytes.subspan(head.header.length),
                  head.prefix.checks != 0};
}

std::string error_text(int32_t result) {
  const char* const name = cuda::error_name(result);
  return name ? name : std::to_string(result);
}

Result<void> send_answer(transport::Connection& connection, int32_t result, std::string_view reason,
                         transport::Deadline deadline) {
  const auto text =
      std::as_bytes(std::span(reason)).first(std::min<size_t>(reason.size(), wire::kMaxAdoptReasonBytes));
  wire::MessageHeader header{
      .length = static_cast<uint32_t>(text.size()), .kind = wire::MessageKind::reply, .result = result};
  const iovec parts[] = {part_of(header), part_of(text)};
  return transport::send_all(connection, parts, deadline);
}

Result<Answer> receive_answer(transport::Connection& connection, transport::Deadline deadline) {
  wire::MessageHeader header;
  if (auto got =
          transport::receive_exact(connection, std::as_writable_bytes(std::span(&header, 1)), deadline);
      !got)
    return got.error();
  if (header.kind != wire::MessageKind::reply || header.length > wire::kMaxAdoptReasonBytes)
    return Error{ErrorCode::malformed, "the other server's answer is malformed"};
  Answer answer{header.result, std::string(header.length, '\0')};
  if (header.length == 0) return answer;
  auto got = transport::receive_exact(connection, std::as_writable_bytes(std::span(answer.reason)), deadline);
  if (!got) return got.error();
  answer.reason = printable_message(answer.reason);
  return answer;
}

}  // namespace gpupool::worker
