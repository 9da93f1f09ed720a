// A server that plays poold and a session's worker, for tests of the client without poold and a device. It
// accepts connections on a free loopback port, answers hellos, records the session's commands and answers
// them as the test says: correctly, not at all, or wrongly. With a certificate it listens on a tls://
// address.
//
// A thread for each session reads its commands and calls the handlers. The other functions may be called by
// any thread. Bulk connections are left to the test once their hello is answered. Throws std::runtime_error
// if the client does not do what a call waits for within kPatience.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "protocol/control/hello_codec.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/transport/tls/context.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/commands.h"
#include "tests/support/raw_client.h"

namespace gpupool::testing {

struct ReceivedCommand {
  wire::CommandHeader header;
  std::string body;
  // Returns the struct at the beginning of the body.
  template <class Body>
  Body as() const {
    if (body.size() < sizeof(Body)) throw std::runtime_error("the command's body is too short");
    Body value;
    body.copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
};

// A device with this number of bytes of memory, as hellos describe it.
hello::Device fake_device_description(const std::string& name, uint64_t bytes = uint64_t{1} << 30);

class FakeWorker {
 public:
  using Handler = std::function<void(const ReceivedCommand&)>;

  // Offers one device, and a range of addresses that no other FakeWorker of this process offers.
  FakeWorker() : FakeWorker(transport::TlsOptions()) {}
  // `tls`: certificate and key for a tls:// address; without them it is a tcp:// address.
  explicit FakeWorker(const transport::TlsOptions& tls);
  ~FakeWorker();
  FakeWorker(const FakeWorker&) = delete;
  FakeWorker& operator=(const FakeWorker&) = delete;

  transport::Endpoint endpoint() const { return listener_->endpoint(); }
  std::string url() const { return endpoint().text(); }

  // Answers to hellos: `offer`, or `raw_answer` instead if it is not empty; then the connection is closed.
  // Set them before the client connects.
  hello::HelloReply offer;
  std::string raw_answer;
  bool close_after_hello = false;

  // Sets what happens when a command arrives. Commands without a handler: a ping gets a pong, a command that
  // wants a reply an empty one with CUDA_SUCCESS; map_memory and commands that create contexts reply as
  // a worker does, and move_addresses grants the preferred range.
  void on(uint16_t id, Handler handler);
  void on(wire::Command command, Handler handler) { on(static_cast<uint16_t>(command), std::move(handler)); }
  // Answers this command, if it wants a reply, with these bytes and this result.
  void answer(uint16_t id, std::string body, CUresult result = CUDA_SUCCESS);
  void answer(wire::Command command, std::string body, CUresult result = CUDA_SUCCESS) {
    answer(static_cast<uint16_t>(command), std::move(body), result);
  }
  // Never answers it.
  template <class Id>
  void ignore(Id command) {
    on(command, [](const ReceivedCommand&) {});
  }

  // Removes all handlers and recorded commands, for the next test with the same session.
  void forget();

  std::vector<hello::Hello> hellos() const;
  std::vector<ReceivedCommand> received() const;
  std::vector<ReceivedCommand> received(wire::Command command) const;
  // Waits for the command of this kind with this index (from 0) and returns it.
  ReceivedCommand await_command(uint16_t id, size_t index = 0) const;
  ReceivedCommand await_command(wire::Command command, size_t index = 0) const {
    return await_command(static_cast<uint16_t>(command), index);
  }

  // These send to the session that was opened last.
  void reply(uint64_t sequence, std::string_view body = {}, CUresult result = CUDA_SUCCESS);
  void send(wire::MessageKind kind, uint64_t sequence, std::string_view body = {},
            CUresult result = CUDA_SUCCESS, uint64_t retired = 0, uint16_t flags = 0);
  void send_bytes(std::string_view bytes);
  void close();               // closes the session's connection
  void await_closed() const;  // waits until the client has closed a session

  // Waits for the bulk connection with this index, in the order in which they were accepted.
  transport::Connection& bulk(size_t index) const;

 private:
  void accept();
  void answer_hello(std::unique_ptr<transport::Connection> connection, const hello::Hello& hello);
  void serve(transport::Connection& connection);
  bool read_command(transport::Connection& connection, ReceivedCommand* command);
  void handle(const ReceivedCommand& command);
  void answer_by_default(const ReceivedCommand& command);
  transport::Connection& session() const;

  std::shared_ptr<const transport::tls::Context> tls_;  // null: a tcp:// address
  std::unique_ptr<transport::Listener> listener_;
  mutable std::mutex mutex_;  // guards the members below
  mutable std::condition_variable changed_;
  std::map<uint16_t, Handler> handlers_;
  std::vector<hello::Hello> hellos_;
  std::vector<ReceivedCommand> received_;
  std::vector<std::unique_ptr<transport::Connection>> connections_;
  std::vector<transport::Connection*> bulk_;
  transport::Connection* session_ = nullptr;
  size_t closed_ = 0;                  // sessions whose connections the client has closed
  std::mutex send_mutex_;              // held while sending to sessions; locked before mutex_
  std::vector<std::thread> sessions_;  // of the acceptor
  std::thread acceptor_;
};

// Returns the struct's bytes, for bodies.
template <class Body>
std::string bytes_of(const Body& body) {
  return std::string(reinterpret_cast<const char*>(&body), sizeof body);
}

}  // namespace gpupool::testing
