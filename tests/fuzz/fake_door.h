// An Acceptor to which a fuzzer passes connections, on a virtual clock (virtual_time.h). One FakeDoor serves
// all inputs; finish() discards what an input leaves behind. Single-threaded; internal errors abort.
#pragma once
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "protocol/peers/proof.h"
#include "server/poold/acceptor/acceptor.h"
#include "tests/fuzz/virtual_time.h"

namespace gpupool::fuzz {

class FakeConnection final : public transport::Connection {
 public:
  FakeConnection(int socket, std::string peer) : socket_(socket), peer_(std::move(peer)) {}
  ~FakeConnection() override {
    if (socket_ >= 0) ::close(socket_);
  }
  Result<size_t> send_some(std::span<const iovec>) override { return size_t{0}; }
  Result<size_t> receive_some(std::span<std::byte>) override { return size_t{0}; }
  Result<Ready> wait(bool, bool, transport::Deadline) override { return Ready::none; }
  void interrupt() override {}
  void close() override {}
  std::string peer() const override { return peer_; }
  int release_descriptor() override { return std::exchange(socket_, -1); }

 private:
  int socket_;
  const std::string peer_;
};

class FakeListener final : public transport::Listener {
 public:
  explicit FakeListener(std::string scheme)
      : scheme_(std::move(scheme)), readable_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~FakeListener() override { ::close(readable_); }
  void add(int socket, std::string peer) {
    waiting_.push_back(std::make_unique<FakeConnection>(socket, std::move(peer)));
    const uint64_t one = 1;
    if (::write(readable_, &one, sizeof one) != sizeof one) std::abort();
  }
  // Makes the next accept() fail, as if there were no descriptors left.
  void fail_next() { fails_ = true; }
  Result<std::unique_ptr<transport::Connection>> accept(transport::Deadline) override {
    if (std::exchange(fails_, false)) return Error{ErrorCode::unavailable, "no more descriptors"};
    if (!waiting_.empty()) {
      std::unique_ptr<transport::Connection> next = std::move(waiting_.front());
      waiting_.pop_front();
      return next;
    }
    uint64_t count = 0;
    static_cast<void>(!::read(readable_, &count, sizeof count));
    return Error{ErrorCode::limit, "nobody there"};
  }
  transport::Endpoint endpoint() const override { return {scheme_, "127.0.0.1", 1}; }
  int descriptor() const override { return readable_; }
  void close() override {}

 private:
  const std::string scheme_;
  const int readable_;
  std::deque<std::unique_ptr<FakeConnection>> waiting_;
  bool fails_ = false;
};

class FakeDoor {
 public:
  static constexpr std::chrono::milliseconds kHelloTimeout{10'000};
  static constexpr unsigned kConnectionsPerSecond = 5;  // of one peer; twice as many at once
  // The only session that other servers may name, and the key of its copies.
  static constexpr std::array<uint8_t, 16> kSession{1, 2, 3};
  static wire::CopyKey key(uint64_t copy) { return peers::copy_key("the token of that session", copy); }

  explicit FakeDoor(const std::string& scheme)
      : listener_(new FakeListener(scheme)),
        door_(
            loop_.context, listeners(), kHelloTimeout, kConnectionsPerSecond,
            [this](server::Client client, const server::Credentials& shown) {
              on_admit(std::move(client), shown);
            },
            [this](server::Client client, const server::Refusal& refusal) {
              on_deny(std::move(client), refusal);
            },
            [](const wire::PeerHello& hello) -> std::optional<server::PeerCopy> {
              uint64_t copy = 0;
              if (!peers::names(hello, kSession, &copy)) return std::nullopt;
              return server::PeerCopy{1, copy, key(copy)};
            }) {
    door_.open();
    loop_.settle();
  }

  // Opens a connection and returns its client's end.
  int connect(const std::string& peer) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
    listener_->add(ends[0], peer);
    loop_.settle();
    return ends[1];
  }
  // Ends or drops all connections: advances the clock past the hello timeout and past the time in which
  // refusals are sent.
  void finish() {
    loop_.settle();
    loop_.pass(kHelloTimeout);
    loop_.pass(std::chrono::hours(1));
    on_admit = nullptr;
    on_deny = nullptr;
  }

  Loop& loop() { return loop_; }
  FakeListener& listener() { return *listener_; }
  server::Acceptor& door() { return door_; }
  std::function<void(server::Client, const server::Credentials&)> on_admit;
  std::function<void(server::Client, const server::Refusal&)> on_deny;

 private:
  std::vector<std::unique_ptr<transport::Listener>> listeners() {
    std::vector<std::unique_ptr<transport::Listener>> all;
    all.emplace_back(listener_);
    return all;
  }

  Loop loop_;
  FakeListener* const listener_;  // owned by door_
  server::Acceptor door_;
};

// Sends bytes on a Unix socket with a descriptor.
inline void send_with_descriptor(int socket, const std::string& bytes, int descriptor) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  union {
    cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.space;
  message.msg_controllen = sizeof control.space;
  control.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  *reinterpret_cast<int*>(CMSG_DATA(&control.header)) = descriptor;
  static_cast<void>(::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace gpupool::fuzz
