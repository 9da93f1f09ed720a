// A client that sends raw, possibly invalid wire messages, for tests of a server. It does not check or
// correct what it sends. Throws std::runtime_error if the server does not do what a call waits for within 20
// s.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/control/hello_codec.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"

namespace gpupool::testing {

struct Message {
  wire::MessageHeader header;
  std::string body;
};

hello::Hello test_hello();
std::string hello_bytes(const hello::Hello& hello);  // with its Preamble

class RawClient {
 public:
  explicit RawClient(const transport::Endpoint& endpoint, const transport::Options& options = {});

  transport::Connection& connection() { return *connection_; }

  void send(std::string_view bytes);
  void send_preamble(const wire::Preamble& preamble);
  void send_hello(const hello::Hello& hello = test_hello());  // with a correct Preamble
  hello::HelloReply receive_reply();
  // Performs the whole handshake; throws if the server does not accept it.
  hello::HelloReply open(const hello::Hello& hello = test_hello());

  // Sends a command with the next sequence number and returns that number.
  uint64_t send_command(wire::Command command, std::string_view body = {}, uint64_t context = 0,
                        uint16_t flags = 0);
  uint64_t send_command(uint16_t id, std::string_view body, uint64_t context, uint16_t flags);
  void send_header(const wire::CommandHeader& header);  // unchanged
  Message receive_message();
  // Returns the reply to this command; skips other messages.
  Message receive_reply_to(uint64_t sequence);
  void ping();  // waits for the pong: then the server has read all earlier commands

  // Waits for the end of the connection and skips messages until then. Returns the reason of the last `end`
  // message, "" if there was none; null on timeout.
  std::optional<std::string> await_end(
      std::chrono::milliseconds patience = std::chrono::milliseconds(20'000));
  void close() { connection_->close(); }

  template <class Body>
  static std::string_view bytes_of(const Body& body) {
    return {reinterpret_cast<const char*>(&body), sizeof body};
  }

 private:
  std::string receive(size_t size);

  std::unique_ptr<transport::Connection> connection_;
  uint64_t sequence_ = 0;
};

}  // namespace gpupool::testing
