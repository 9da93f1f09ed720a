#include "tests/support/counting_proxy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "protocol/wire/frame.h"

namespace gpupool::testing {
namespace {

using transport::Clock;
using transport::Connection;

constexpr size_t kBufferBytes = 1 << 20;

Result<void> send(Connection& to, std::span<const std::byte> bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return transport::send_all(to, {&part, 1}, std::nullopt);
}

// Follows the client's byte stream: the hello, then frames.
class FrameCounter {
 public:
  template <class OnCommand>
  void feed(std::span<const std::byte> bytes, OnCommand&& on_command) {
    while (!bytes.empty()) {
      if (skip_ > 0) {
        const size_t step = std::min<uint64_t>(skip_, bytes.size());
        skip_ -= step;
        bytes = bytes.subspan(step);
        continue;
      }
      const size_t wanted = (hello_done_ ? sizeof(wire::CommandHeader) : sizeof(wire::Preamble)) - header_.size();
      const size_t step = std::min(wanted, bytes.size());
      header_.insert(header_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(step));
      bytes = bytes.subspan(step);
      if (step < wanted) return;
      if (hello_done_) {
        wire::CommandHeader header;
        std::memcpy(&header, header_.data(), sizeof header);
        skip_ = header.length;
        on_command(header);
      } else {
        wire::Preamble preamble;
        std::memcpy(&preamble, header_.data(), sizeof preamble);
        skip_ = preamble.length;
        hello_done_ = true;
      }
      header_.clear();
    }
  }

 private:
  bool hello_done_ = false;
  uint64_t skip_ = 0;
  std::vector<std::byte> header_;
};

}  // namespace

struct CountingProxy::Pair {
  std::unique_ptr<Connection> client;
  std::unique_ptr<Connection> server;
  std::thread forward;
  std::thread backward;
};

CountingProxy::CountingProxy(const transport::Endpoint& server) : server_(server) {
  auto listener = transport::listen({"tcp", "127.0.0.1", 0}, {});
  if (!listener) throw std::runtime_error(listener.error().message);
  listener_ = std::move(*listener);
  acceptor_ = std::thread([this] { accept(); });
}

CountingProxy::~CountingProxy() {
  stopping_ = true;
  listener_->close();
  acceptor_.join();
  for (auto& pair : pairs_) {
    pair->client->close();
    pair->server->close();
    pair->forward.join();
    pair->backward.join();
  }
}

void CountingProxy::accept() {
  while (!stopping_) {
    auto client = listener_->accept(std::nullopt);
    if (!client) return;
    auto server = transport::connect(server_, {});
    if (!server) continue;
    auto pair = std::make_unique<Pair>();
    pair->client = std::move(*client);
    pair->server = std::move(*server);
    pair->forward = std::thread([this, &pair = *pair] { count_commands(pair); });
    pair->backward = std::thread([this, &pair = *pair] { pass_back(pair); });
    pairs_.push_back(std::move(pair));
  }
}

void CountingProxy::count_commands(Pair& pair) {
  std::vector<std::byte> buffer(kBufferBytes);
  FrameCounter counter;
  for (;;) {
    const auto received = pair.client->receive_some(buffer);
    if (!received) break;
    if (*received == 0) {
      if (!pair.client->wait(true, false, std::nullopt)) break;
      continue;
    }
    const std::span<const std::byte> bytes(buffer.data(), *received);
    counter.feed(bytes, [&](const wire::CommandHeader& header) {
      if (header.id == static_cast<uint16_t>(wire::Command::ping)) return;
      ++commands_;
      if (header.flags & wire::kWantsReply) ++round_trips_;
    });
    if (!send(*pair.server, bytes)) break;
  }
  pair.server->close();
}

void CountingProxy::pass_back(Pair& pair) {
  std::vector<std::byte> buffer(kBufferBytes);
  for (;;) {
    const auto received = pair.server->receive_some(buffer);
    if (!received) break;
    if (*received == 0) {
      if (!pair.server->wait(true, false, std::nullopt)) break;
      continue;
    }
    if (!send(*pair.client, {buffer.data(), *received})) break;
  }
  pair.client->close();
}

}  // namespace gpupool::testing
