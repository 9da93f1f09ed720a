#include "tests/support/raw_client.h"

#include <unistd.h>

#include <stdexcept>
#include <vector>

namespace gpupool::testing {
namespace {

transport::Deadline soon() {
  return transport::Clock::now() + std::chrono::seconds(20);
}

}  // namespace

hello::Hello test_hello() {
  return {.protocol_version = wire::kProtocolVersion,
          .client_version = "test",
          .cuda_version = 13000,
          .program = "raw_client",
          .host = "localhost",
          .pid = ::getpid()};
}

std::string hello_bytes(const hello::Hello& hello) {
  const std::string body = hello::encode(hello);
  const wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
  return std::string(RawClient::bytes_of(preamble)) + body;
}

RawClient::RawClient(const transport::Endpoint& endpoint, const transport::Options& options) {
  auto connected = transport::connect(endpoint, options);
  if (!connected) throw std::runtime_error(connected.error().message);
  connection_ = std::move(*connected);
}

void RawClient::send(std::string_view bytes) {
  const iovec buffer{const_cast<char*>(bytes.data()), bytes.size()};
  const auto sent = transport::send_all(*connection_, {&buffer, 1}, soon());
  if (!sent) throw std::runtime_error(sent.error().message);
}

std::string RawClient::receive(size_t size) {
  std::string bytes(size, '\0');
  const auto received =
      transport::receive_exact(*connection_, std::as_writable_bytes(std::span(bytes)), soon());
  if (!received) throw std::runtime_error(received.error().message);
  return bytes;
}

void RawClient::send_preamble(const wire::Preamble& preamble) {
  send(bytes_of(preamble));
}

void RawClient::send_hello(const hello::Hello& hello) {
  send(hello_bytes(hello));
}

hello::HelloReply RawClient::receive_reply() {
  wire::Preamble preamble;
  receive(sizeof preamble).copy(reinterpret_cast<char*>(&preamble), sizeof preamble);
  if (preamble.magic != wire::kMagic || preamble.protocol_version != wire::kProtocolVersion ||
      preamble.length > wire::kMaxHelloBytes) {
    throw std::runtime_error("invalid preamble from the server");
  }
  const auto reply = hello::decode_hello_reply(receive(preamble.length));
  if (!reply) throw std::runtime_error(reply.error().message);
  return *reply;
}

hello::HelloReply RawClient::open(const hello::Hello& hello) {
  send_hello(hello);
  auto reply = receive_reply();
  if (reply.status != hello::Status::ok) throw std::runtime_error("refused: " + reply.reason);
  const auto upgraded = connection_->upgrade(transport::Side::client, soon());
  if (!upgraded) throw std::runtime_error(upgraded.error().message);
  return reply;
}

uint64_t RawClient::send_command(wire::Command command, std::string_view body, uint64_t context,
                                 uint16_t flags) {
  return send_command(static_cast<uint16_t>(command), body, context, flags);
}

uint64_t RawClient::send_command(uint16_t id, std::string_view body, uint64_t context, uint16_t flags) {
  const wire::CommandHeader header{.length = static_cast<uint32_t>(body.size()),
                                   .id = id,
                                   .flags = flags,
                                   .context = context,
                                   .sequence = ++sequence_};
  send(std::string(bytes_of(header)) + std::string(body));
  return sequence_;
}

void RawClient::send_header(const wire::CommandHeader& header) {
  send(bytes_of(header));
}

Message RawClient::receive_message() {
  Message message;
  receive(sizeof message.header).copy(reinterpret_cast<char*>(&message.header), sizeof message.header);
  if (message.header.length > wire::kMaxBodyBytes)
    throw std::runtime_error("the server's message is too long");
  message.body = receive(message.header.length);
  return message;
}

Message RawClient::receive_reply_to(uint64_t sequence) {
  while (true) {
    Message message = receive_message();
    if (message.header.kind == wire::MessageKind::reply && message.header.sequence == sequence)
      return message;
    if (message.header.kind == wire::MessageKind::end)
      throw std::runtime_error("the session ended: " + message.body);
  }
}

void RawClient::ping() {
  send_command(wire::Command::ping);
  while (true) {
    const Message message = receive_message();
    if (message.header.kind == wire::MessageKind::pong) return;
    if (message.header.kind == wire::MessageKind::end)
      throw std::runtime_error("the session ended: " + message.body);
  }
}

std::optional<std::string> RawClient::await_end(std::chrono::milliseconds patience) {
  const auto deadline = transport::Clock::now() + patience;
  std::string bytes;
  while (true) {
    std::byte chunk[4096];
    const auto received = connection_->receive_some(chunk);
    if (!received) break;
    bytes.append(reinterpret_cast<const char*>(chunk), *received);
    if (*received > 0) continue;
    const auto ready = connection_->wait(true, false, deadline);
    if (!ready) break;
    if (*ready == transport::Connection::Ready::none && transport::Clock::now() >= deadline)
      return std::nullopt;
  }
  std::string reason;
  for (std::string_view rest = bytes; rest.size() >= sizeof(wire::MessageHeader);) {
    wire::MessageHeader header;
    rest.copy(reinterpret_cast<char*>(&header), sizeof header);
    rest.remove_prefix(sizeof header);
    if (header.length > rest.size()) break;
    if (header.kind == wire::MessageKind::end) reason = std::string(rest.substr(0, header.length));
    rest.remove_prefix(header.length);
  }
  return reason;
}

}  // namespace gpupool::testing
