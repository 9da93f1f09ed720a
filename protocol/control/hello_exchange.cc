#include "protocol/control/hello_exchange.h"

#include <array>
#include <cstring>

#include "common/text/names.h"
#include "common/text/printable.h"
#include "protocol/wire/frame.h"

namespace gpupool::hello {
namespace {

// True for the beginning of an HTTP/2 SETTINGS frame (RFC 9113, 6.5), the first bytes that a gRPC server
// sends.
bool is_http2(const wire::Preamble& answer) {
  // Type, flags, stream; the length's three bytes come before.
  constexpr std::array<unsigned char, 6> kRest{0x04, 0, 0, 0, 0, 0};
  return std::memcmp(reinterpret_cast<const unsigned char*>(&answer) + 3, kRest.data(), kRest.size()) == 0;
}

// Sanitizes the server's texts, which reach terminals, logs and programs.
void make_texts_printable(HelloReply& reply) {
  reply.reason = printable_message(reply.reason);
  reply.server_version = printable(cut_name(reply.server_version));
  reply.moved_to = printable_message(reply.moved_to);
  for (Device& device : reply.devices) {
    device.name = printable(cut_name(device.name));
    device.pci_bus_id = printable(cut_name(device.pci_bus_id));
  }
}

Result<void> send_hello(transport::Connection& connection, const Hello& hello, transport::Deadline deadline) {
  const std::string text = encode(hello);
  wire::Preamble preamble;
  preamble.length = static_cast<uint32_t>(text.size());
  const iovec parts[] = {{&preamble, sizeof preamble}, {const_cast<char*>(text.data()), text.size()}};
  return transport::send_all(connection, parts, deadline);
}

// Receives a reply of any status.
Result<HelloReply> receive_any_reply(transport::Connection& connection, transport::Deadline deadline) {
  wire::Preamble answer;
  if (auto got = transport::receive_exact(connection, {reinterpret_cast<std::byte*>(&answer), sizeof answer},
                                          deadline);
      !got) {
    // The server resets the connection if it has not read the hello.
    const bool ended = got.error().code == ErrorCode::closed || got.error().code == ErrorCode::reset ||
                       got.error().code == ErrorCode::lost;
    return Error{
        got.error().code,
        "no answer to the hello: " + got.error().message +
            (ended ? "; check that poold listens there, and whether it requires TLS (tls://HOST:PORT)" : "")};
  }
  if (answer.magic != wire::kMagic || answer.length > wire::kMaxHelloBytes) {
    return Error{ErrorCode::malformed,
                 is_http2(answer)
                     ? "the server there is not poold: it speaks HTTP/2, as pool-scheduler does; "
                       "use pool://HOST:PORT for GPUs of a pool"
                     : "the server there is not poold; check the host and the port"};
  }
  std::string body(answer.length, '\0');
  if (auto got = transport::receive_exact(connection,
                                          {reinterpret_cast<std::byte*>(body.data()), body.size()}, deadline);
      !got) {
    return Error{got.error().code, "the connection ended during the server's hello: " + got.error().message};
  }
  auto reply = decode_hello_reply(body);
  if (!reply) return reply.error();
  make_texts_printable(*reply);
  if (reply->status == Status::ok && answer.protocol_version != wire::kProtocolVersion) {
    return Error{ErrorCode::refused, "the server speaks protocol version " +
                                         std::to_string(answer.protocol_version) + ", this client " +
                                         std::to_string(wire::kProtocolVersion)};
  }
  return reply;
}

Error refusal(const HelloReply& reply) {
  return {reply.status == Status::suspended ? ErrorCode::suspended : ErrorCode::refused,
          "refused: " + reply.reason};
}

}  // namespace

Result<HelloReply> exchange(transport::Connection& connection, const Hello& hello,
                            transport::Deadline deadline) {
  if (auto sent = send_hello(connection, hello, deadline); !sent) return sent.error();
  return receive_reply(connection, deadline);
}

Result<HelloReply> exchange_patiently(transport::Connection& connection, const Hello& hello,
                                      transport::Deadline deadline) {
  if (auto sent = send_hello(connection, hello, deadline); !sent) return sent.error();
  auto reply = receive_any_reply(connection, deadline);
  if (!reply) return reply;
  switch (reply->status) {
    case Status::ok:
    case Status::busy:
    case Status::no_device:
    case Status::suspended: return reply;
    default: return refusal(*reply);
  }
}

Result<HelloReply> receive_reply(transport::Connection& connection, transport::Deadline deadline) {
  auto reply = receive_any_reply(connection, deadline);
  if (reply && reply->status != Status::ok) return refusal(*reply);
  return reply;
}

}  // namespace gpupool::hello
