#include "server/handover/handover.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

namespace gpupool::server {
namespace {

union DescriptorSpace {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

Error failure(const char* doing, int error) {
  const bool gone = error == EPIPE || error == ECONNRESET || error == ENOTCONN;
  const bool full = error == EAGAIN || error == ETOOMANYREFS;
  return {gone   ? ErrorCode::closed
          : full ? ErrorCode::limit
                 : ErrorCode::unavailable,
          std::string(doing) + " the control socket: " + std::generic_category().message(error)};
}

// Returns the number of descriptors received, and keeps the first in `first`. Alignment leaves room for more
// than one.
size_t take_descriptors(msghdr& message, int& first) {
  size_t count = 0;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= control->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(control) + at, sizeof descriptor);
      if (count++ == 0)
        first = descriptor;
      else
        ::close(descriptor);
    }
  }
  return count;
}

}  // namespace

Result<void> send_packet(int socket, ControlKind kind, std::span<const std::byte> body,
                         std::string_view payload, int descriptor) {
  if (payload.size() > kMaxControlPayload) return Error{ErrorCode::limit, "control message is too long"};
  ControlHeader header{kind, static_cast<uint32_t>(payload.size())};
  iovec parts[3] = {{&header, sizeof header},
                    {const_cast<std::byte*>(body.data()), body.size()},
                    {const_cast<char*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 3;
  DescriptorSpace space{};
  if (descriptor >= 0) {
    message.msg_control = space.bytes;
    message.msg_controllen = sizeof space.bytes;
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno != EINTR) return failure("writing to", errno);
  }
  return {};
}

namespace {

// Splits what follows the header into the struct of the kind and the payload. Returns false if the sizes are
// wrong or the kind is unknown.
bool split(const ControlHeader& header, std::string rest, ControlMessage& out) {
  const std::optional<size_t> body = control_body_bytes(header.kind);
  if (!body || header.payload_bytes > kMaxControlPayload || rest.size() != *body + header.payload_bytes)
    return false;
  out.kind = header.kind;
  std::memcpy(out.body_bytes.data(), rest.data(), *body);
  rest.erase(0, *body);
  out.payload = std::move(rest);
  return true;
}

// `most`: the largest accepted size of what follows the header.
Result<ControlMessage> receive(int socket, DescriptorSpace* space, int flags, size_t most) {
  ControlHeader header;
  std::string rest(most, '\0');
  iovec parts[2] = {{&header, sizeof header}, {rest.data(), rest.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = space;
  message.msg_controllen = space == nullptr ? 0 : sizeof space->bytes;
  ssize_t size = 0;
  while ((size = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno != EINTR) return failure("reading from", errno);
  }
  ControlMessage out;
  const size_t descriptors = take_descriptors(message, out.descriptor);
  if (size == 0) return Error{ErrorCode::closed, "the control socket was closed"};
  const auto received = static_cast<size_t>(size);
  const bool whole = received >= sizeof header && (message.msg_flags & MSG_TRUNC) == 0 && descriptors <= 1;
  if (whole) rest.resize(received - sizeof header);
  if (!whole || !split(header, std::move(rest), out)) {
    if (out.descriptor >= 0) ::close(out.descriptor);
    return Error{ErrorCode::malformed, "malformed message on the control socket"};
  }
  return out;
}

constexpr size_t kMaxRest = kMaxControlBody + kMaxControlPayload;

}  // namespace

Result<ControlMessage> receive_control(int socket) {
  DescriptorSpace space{};
  return receive(socket, &space, 0, kMaxRest);
}

Result<ControlMessage> receive_worker_control(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ssize_t size = 0;  // of the whole message: most have no payload
  while ((size = ::recvmsg(socket, &message, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT)) < 0) {
    if (errno != EINTR) return failure("reading from", errno);
  }
  // Receiving descriptors would close them on this thread.
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return Error{ErrorCode::malformed, "a message on the control socket carries descriptors"};
  const size_t rest = std::max(static_cast<size_t>(size), sizeof(ControlHeader)) - sizeof(ControlHeader);
  return receive(socket, nullptr, MSG_DONTWAIT, std::min(rest, kMaxRest));
}

}  // namespace gpupool::server
