#include "server/poold/acceptor/pending_handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <asio/write.hpp>
#include <cstddef>
#include <cstring>
#include <utility>

#include "common/admission/peer.h"
#include "common/text/names.h"
#include "common/text/printable.h"
#include "common/version.h"
#include "server/handover/handover.h"
#include "server/sockets/descriptor_closer.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

constexpr std::chrono::milliseconds kRefusalTimeout{2'000};
constexpr size_t kMostDiscarded = 256 * 1024;
constexpr int kMostRecordsAtOnce = 64;  // TLS records; then another connection's step runs

std::string encode(const Refusal& refusal) {
  control::HelloReply reply;
  reply.set_status(refusal.status);
  reply.set_reason(refusal.reason);
  reply.set_moved_to(refusal.moved_to);
  reply.set_protocol_version(wire::kProtocolVersion);
  reply.set_server_version(kVersion);
  const std::string body = reply.SerializeAsString();
  const wire::Preamble preamble{.length = static_cast<uint32_t>(body.size())};
  return std::string(reinterpret_cast<const char*>(&preamble), sizeof preamble) + body;
}

// True for a Unix socket at a path, which containers may share. An abstract name belongs to one network
// namespace.
bool is_at_path(int socket) {
  sockaddr_un own{};
  socklen_t size = sizeof own;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
         size <= offsetof(sockaddr_un, sun_path) || own.sun_path[0] != '\0';
}

}  // namespace

PendingHandshake::PendingHandshake(Acceptor& acceptor, int descriptor, std::string transport,
                                   std::string address, std::shared_ptr<transport::tls::Stream> tls)
    : acceptor_(acceptor),
      stream_(acceptor.context_, descriptor),
      timer_(acceptor.context_),
      transport_(std::move(transport)),
      address_(std::move(address)),
      peer_(peer_of(address_, descriptor)),
      tls_(std::move(tls)) {}

void PendingHandshake::read(asio::mutable_buffer buffer, Then then) {
  const std::span<std::byte> bytes(static_cast<std::byte*>(buffer.data()), buffer.size());
  if (tls_) return read_tls(bytes, 0, std::move(then));
  async_receive(
      stream_, bytes,
      [self = shared_from_this(), then = std::move(then)](const asio::error_code& status, size_t count) {
        if (status == asio::error::no_permission)
          return self->reject("descriptors received before the session started");
        if (status != asio::error::operation_aborted) then(status, count);
      });
}

// Runs `work` on the handshake thread, and then `done` on poold's unless the connection was dropped.
void PendingHandshake::post_tls_step(std::function<void()> work, std::function<void()> done) {
  tls_step_pending_ = true;
  const auto self = shared_from_this();
  acceptor_.tls_handshakes_.post({.owner = this,
                                  .peer = peer_,
                                  .work = [self, work = std::move(work)] { work(); },
                                  .done =
                                      [self, done = std::move(done)] {
                                        self->tls_step_pending_ = false;
                                        if (self->dropped_) return self->close();
                                        done();
                                      }});
}

void PendingHandshake::read_tls(std::span<std::byte> buffer, size_t received, Then then) {
  post_tls_step([this, rest = buffer.subspan(received)] { read_records(rest); },
                [this, buffer, received, then = std::move(then)] {
                  const size_t sum = received + received_;
                  if (read_error_ && read_error_->code == ErrorCode::closed)
                    return then(asio::error::eof, sum);
                  if (read_error_) return fail_tls(read_error_->message);
                  if (sum == buffer.size()) return then({}, sum);
                  if (!starved_) return read_tls(buffer, sum, then);
                  await_tls([this, buffer, sum, then] { read_tls(buffer, sum, then); });
                });
}

// Runs on the handshake thread: a client chooses the number of records that its hello takes.
void PendingHandshake::read_records(std::span<std::byte> buffer) {
  received_ = 0;
  starved_ = false;
  for (int count = 0; count < kMostRecordsAtOnce && received_ < buffer.size() && !starved_; ++count) {
    const auto got = tls_->receive_some(buffer.subspan(received_));
    if (!got) {
      read_error_ = got.error();
      return;
    }
    received_ += *got;
    starved_ = *got == 0;
  }
}

void PendingHandshake::open_tls() {
  post_tls_step([this] { take_tls_step(); }, [this] { tls_step_done(); });
}

// Runs on the handshake thread. Skips the step if the client has already disconnected.
void PendingHandshake::take_tls_step() {
  pollfd left{.fd = stream_.native_handle(), .events = POLLRDHUP, .revents = 0};
  if (::poll(&left, 1, 0) > 0)
    opened_ = Error{ErrorCode::closed, address_ + " closed the connection"};
  else
    opened_ = tls_->open();
}

void PendingHandshake::tls_step_done() {
  if (!opened_ && opened_.error().code == ErrorCode::closed)
    return reject("disconnected before sending a hello");
  if (!opened_) return fail_tls(opened_.error().message);
  if (!*opened_) return await_tls([this] { open_tls(); });
  read_preamble();
}

// OpenSSL has already sent the client an alert, if it could.
void PendingHandshake::fail_tls(const std::string& why) {
  acceptor_.report(address_, why);
  start_timer(kRefusalTimeout, "timed out reading the TLS alert");
  written({});
}

void PendingHandshake::write_tls(std::span<const std::byte> rest) {
  while (!rest.empty()) {
    const auto sent = tls_->send_some(rest);
    if (!sent) return drop();
    if (*sent == 0) return await_tls([this, rest] { write_tls(rest); });
    rest = rest.subspan(*sent);
  }
  written({});
}

void PendingHandshake::await_tls(std::function<void()> then) {
  using asio::posix::stream_descriptor;
  stream_.async_wait(tls_->wants_to_send() ? stream_descriptor::wait_write : stream_descriptor::wait_read,
                     [self = shared_from_this(), then = std::move(then)](const asio::error_code& status) {
                       if (!status) then();
                     });
}

// True if the peer speaks gpupool's protocol without TLS, as other servers do, and clients to a tcp:// port.
// Decides by the bytes that have arrived, which may be fewer than the magic number's: no TLS record begins
// with its first byte, and read_body() rejects what only begins like it.
bool PendingHandshake::is_plain() {
  std::array<std::byte, sizeof wire::kMagic> first;
  const ssize_t arrived =
      ::recv(stream_.native_handle(), first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
  return arrived > 0 && std::memcmp(first.data(), &wire::kMagic, static_cast<size_t>(arrived)) == 0;
}

void PendingHandshake::start_timer(std::chrono::milliseconds timeout, const char* reason) {
  timer_.expires_after(timeout);
  timer_.async_wait([self = shared_from_this(), reason](const asio::error_code& status) {
    if (!status) self->reject(reason);
  });
}

void PendingHandshake::read_hello(std::chrono::milliseconds timeout) {
  start_timer(timeout, "handshake timed out");
  if (!tls_) return read_preamble();
  await_tls([this] {
    if (!is_plain()) return open_tls();
    tls_.reset();
    read_preamble();
  });
}

void PendingHandshake::read_preamble() {
  read(asio::buffer(&preamble_, sizeof preamble_), [this](const asio::error_code& status, size_t received) {
    if (!status) return read_body();
    reject(received == 0 ? "disconnected before sending a hello" : "disconnected during its hello");
  });
}

void PendingHandshake::read_body() {
  if (preamble_.magic != wire::kMagic) return reject("not gpupool's protocol");
  if (preamble_.protocol_version == wire::kPeerProtocolVersion) return read_peer_hello();
  if (transport_ == "tls" && !tls_) {
    return refuse(
        {control::HelloReply::DENIED, "this port requires TLS: use tls:// instead of tcp:// in GPUPOOL"});
  }
  if (preamble_.protocol_version != wire::kProtocolVersion) {
    return refuse({control::HelloReply::WRONG_VERSION,
                   "the server speaks protocol version " + std::to_string(wire::kProtocolVersion) +
                       ", the client " + std::to_string(preamble_.protocol_version) +
                       "; use the same release of gpupool on both sides"});
  }
  if (preamble_.length > kMaxClientHelloBytes) {
    return refuse({control::HelloReply::MALFORMED,
                   "the client's hello is " + std::to_string(preamble_.length) +
                       " bytes long; the limit is " + std::to_string(kMaxClientHelloBytes)});
  }
  bytes_.resize(preamble_.length);
  read(asio::buffer(bytes_), [this](const asio::error_code& status, size_t) {
    if (!status) return handle_hello();
    reject("disconnected during its hello");
  });
}

void PendingHandshake::handle_hello() {
  control::Hello hello;
  if (!hello.ParseFromString(bytes_)) {
    return refuse({control::HelloReply::MALFORMED, "cannot parse the client's hello"});
  }
  if (hello.from_peer()) {
    return refuse({control::HelloReply::WRONG_VERSION,
                   "a server of an older release requested a connection for a copy; use the same release of "
                   "gpupool on both servers"});
  }
  // Bytes that OpenSSL has already received cannot be handed over. A client waits for the worker, which
  // starts a TLS session of its own.
  if (tls_ && tls_->has_received())
    return refuse({control::HelloReply::MALFORMED, "data received before the hello was answered"});
  timer_.cancel();
  Credentials shown{.tenant = hello.tenant(), .token = hello.token()};
  if (tls_) shown.certificate_names = tls_->certificate_names();
  const int socket = stream_.native_handle();
  if (transport_ == "shm" && (acceptor_.trusts_users_at_paths_ || !is_at_path(socket)))
    shown.user = user_of(socket);
  hello.clear_token();  // the worker must not see it
  const auto process = PeerProcess::of(socket);
  std::optional<Client::Resume> resume;
  if (!hello.resume_proof().empty()) {
    resume = {hello.resume_proof(), hello.bulk_link(), hello.resume_attempt(), hello.resume_received(),
              printable_message(hello.failure())};
  }
  Client client{.descriptor = stream_.release(),
                .transport = transport_ == "shm" || transport_ == "tls" ? transport_
                             : hello.rdma() != 0                        ? "rdma"
                                                                        : "tcp",
                .hello = hello.SerializeAsString(),
                .session_id = hello.session_id(),
                .bulk_token = hello.bulk_token(),
                .bulk_link = hello.bulk_link(),
                .resume = resume,
                .monitor = hello.monitor(),
                .checkpoint = hello.checkpoint(),
                .tls = tls_,
                .admission_peer = peer_,
                .address = address_,
                .host = cut_name(hello.host()),
                .program = cut_name(hello.program()),
                .pid = hello.pid(),
                .pid_space = cut_name(hello.pid_space()),
                .process = process};
  acceptor_.admit(*this, std::move(client), shown);
}

void PendingHandshake::refuse(const Refusal& refusal) {
  // A client that waits for its suspended session is not turned away.
  if (refusal.status != control::HelloReply::SUSPENDED) acceptor_.report(address_, refusal.reason);
  start_timer(kRefusalTimeout, "timed out reading the refusal");
  bytes_ = encode(refusal);
  if (tls_) return write_tls(std::as_bytes(std::span(bytes_)));
  asio::async_write(stream_, asio::buffer(bytes_),
                    [self = shared_from_this()](const asio::error_code& status, size_t) {
                      if (status != asio::error::operation_aborted) self->written(status);
                    });
}

void PendingHandshake::written(const asio::error_code& status) {
  if (status) return drop();
  ::shutdown(stream_.native_handle(), SHUT_WR);
  discard_input();
}

// Reads the rest: closing with unread bytes would reset the connection, and the client might lose the
// refusal.
void PendingHandshake::discard_input() {
  async_receive_some(stream_, sink_,
                     [self = shared_from_this()](const asio::error_code& status, size_t received) {
                       if (status == asio::error::operation_aborted) return;
                       self->discarded_ += received;
                       if (status || self->discarded_ > kMostDiscarded) return self->drop();
                       self->discard_input();
                     });
}

void PendingHandshake::reject(const std::string& why) {
  acceptor_.report(address_, why);
  drop();
}

void PendingHandshake::close() {
  if (stream_.is_open()) close_connection(stream_.release());
}

void PendingHandshake::drop() {
  const auto self = shared_from_this();
  timer_.cancel();
  dropped_ = true;
  if (tls_step_pending_ && acceptor_.tls_handshakes_.cancel(this)) tls_step_pending_ = false;
  if (!tls_step_pending_) close();  // else tls_step_done() closes it
  if (position) acceptor_.pending_.remove(*std::exchange(position, std::nullopt));
}

}  // namespace gpupool::server
