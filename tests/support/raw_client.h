// Speaks the wire format by hand, well or badly, for tests of what a server does with it. Nothing is checked
// or put right on the way out. Throws std::runtime_error when the server does not do what the call waits for.
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
  // The whole opening; throws unless the server says OK.
  hello::HelloReply open(const hello::Hello& hello = test_hello());

  // The next sequence number is filled in; returns it.
  uint64_t send_command(wire::Command command, std::string_view body = {}, uint64_t context = 0,
                        uint16_t flags = 0);
  uint64_t send_command(uint16_t id, std::string_view body, uint64_t context, uint16_t flags);
  void send_header(const wire::CommandHeader& header);  // as it is, whatever it says
  Message receive_message();
  // The reply to this command; messages of other kinds are skipped.
  Message receive_reply_to(uint64_t sequence);
  void ping();  // and await the pong: the server is alive and has read everything before

  // Awaits the end of the connection, skipping what still comes; nothing: it did not end in time.
  // The value is what the last `end` message said, or empty.
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
