#include "protocol/control/hello_exchange.h"

#include "protocol/wire/frame.h"

namespace gpupool::hello {

Result<HelloReply> exchange(transport::Connection& connection, const Hello& hello, transport::Deadline deadline) {
  const std::string text = encode(hello);
  wire::Preamble preamble;
  preamble.length = static_cast<uint32_t>(text.size());
  const iovec parts[] = {{&preamble, sizeof preamble}, {const_cast<char*>(text.data()), text.size()}};
  if (auto sent = transport::send_all(connection, parts, deadline); !sent) return sent.error();

  wire::Preamble answer;
  if (auto got = transport::receive_exact(connection, {reinterpret_cast<std::byte*>(&answer), sizeof answer}, deadline); !got) {
    return Error{got.error().code, "no answer to the hello: " + got.error().message};
  }
  if (answer.magic != wire::kMagic || answer.length > wire::kMaxHelloBytes) {
    return Error{ErrorCode::malformed, "what listens there is no poold"};
  }
  std::string body(answer.length, '\0');
  if (auto got = transport::receive_exact(connection, {reinterpret_cast<std::byte*>(body.data()), body.size()}, deadline); !got) {
    return Error{got.error().code, "the answer to the hello broke off: " + got.error().message};
  }
  auto reply = decode_hello_reply(body);
  if (!reply) return reply.error();
  if (reply->status != Status::ok) return Error{ErrorCode::refused, "refused: " + reply->reason};
  if (answer.protocol_version != wire::kProtocolVersion) {
    return Error{ErrorCode::refused, "it speaks protocol version " + std::to_string(answer.protocol_version) +
                                         ", this client " + std::to_string(wire::kProtocolVersion)};
  }
  return reply;
}

}  // namespace gpupool::hello
