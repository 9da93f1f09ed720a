#include "server/poold/workers/peer_connections.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <cerrno>

#include "common/log/log.h"
#include "common/text/printable.h"
#include "protocol/control/hello.pb.h"
#include "protocol/peers/proof.h"

namespace gpupool::server {
namespace {

using asio::ip::tcp;

constexpr size_t kMostWaiting = 64;  // attempts per session; a worker requests no more peers at once
constexpr uint32_t kLongestRefusal = 4096;
constexpr size_t kLongestReason = 256;

tcp::endpoint endpoint_of(const wire::PeerTarget& target) {
  asio::ip::address_v6::bytes_type bytes;
  std::copy(target.address.begin(), target.address.end(), bytes.begin());
  const asio::ip::address_v6 six(bytes);
  if (six.is_v4_mapped()) return {asio::ip::make_address_v4(asio::ip::v4_mapped, six), target.port};
  return {six, target.port};
}

std::string text_of(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

}  // namespace

// One attempt. Its session's list owns it until it is answered, and the handlers of pending operations do.
class PeerConnections::Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(PeerConnections& owner, uint64_t session, uint64_t number, const wire::PeerTarget& target)
      : owner_(owner),
        session_(session),
        number_(number),
        target_(target),
        endpoint_(endpoint_of(target)),
        socket_(owner.context_),
        timer_(owner.context_) {}

  void begin(bool connects, Answer answer) {
    answer_ = std::move(answer);
    timer_.expires_after(kPatience);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& status) {
      if (status || !self->answer_) return;
      self->fail("timed out");
      self->end({});
    });
    if (connects)
      connect();
    else
      fail("too many attempts by this session");
  }
  void drop() {
    answer_ = nullptr;
    timer_.cancel();
    fail({});
  }
  Answer take_answer() { return std::exchange(answer_, nullptr); }

 private:
  // Closes the socket; the timer sends the answer. Logs the first failure only.
  void fail(const std::string& why) {
    if (failed_) return;
    failed_ = true;
    if (!why.empty())
      log::info("peer_not_reached",
                {{"session", session_}, {"address", text_of(endpoint_)}, {"reason", why}});
    asio::error_code ignored;
    socket_.close(ignored);
  }
  void end(const Opened& opened) {
    timer_.cancel();
    owner_.finish(session_, number_, opened);
  }
  // Makes a handler that calls `next` if the operation succeeded and the attempt has not failed.
  template <class Next>
  auto then(const char* doing, Next next) {
    return [self = shared_from_this(), doing, next](const asio::error_code& status, size_t = 0) {
      if (self->failed_ || status == asio::error::operation_aborted) return;
      if (status)
        self->fail(std::string(doing) + ": " + status.message());
      else
        next(*self);
    };
  }

  void connect() {
    const auto protocol = endpoint_.protocol();
    const int native = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    asio::error_code bad;
    if (native < 0)
      return fail("cannot create a socket: " + asio::error_code(errno, asio::system_category()).message());
    socket_.assign(protocol, native, bad);
    if (bad) {
      ::close(native);
      return fail(bad.message());
    }
    socket_.async_connect(endpoint_, then("connecting", [](Attempt& self) { self.say_hello(); }));
  }

  void say_hello() {
    wire::PeerNonce nonce;
    if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
      return fail("cannot get random numbers");
    hello_ = peers::make_hello(nonce, target_.session_id, target_.copy);
    hello_.rdma = target_.rdma != 0;
    preamble_ = {.protocol_version = wire::kPeerProtocolVersion, .length = sizeof hello_};
    const std::array<asio::const_buffer, 2> both{asio::buffer(&preamble_, sizeof preamble_),
                                                 asio::buffer(&hello_, sizeof hello_)};
    asio::async_write(socket_, both, then("sending the hello", [](Attempt& self) { self.read_preamble(); }));
  }

  void read_preamble() {
    asio::async_read(socket_, asio::buffer(&preamble_, sizeof preamble_),
                     then("reading the answer", [](Attempt& self) { self.read_answer(); }));
  }

  void read_answer() {
    if (preamble_.magic != wire::kMagic) return fail("the peer is not a poold");
    if (preamble_.protocol_version == wire::kPeerProtocolVersion &&
        preamble_.length == sizeof answer_frame_) {
      asio::async_read(socket_, asio::buffer(&answer_frame_, sizeof answer_frame_),
                       then("reading the proof", [](Attempt& self) { self.check_proof(); }));
      return;
    }
    if (preamble_.length > kLongestRefusal)
      return fail("the peer uses another version of the server protocol");
    refusal_.resize(preamble_.length);
    asio::async_read(socket_, asio::buffer(refusal_),
                     then("reading the refusal", [](Attempt& self) { self.tell_refusal(); }));
  }

  void tell_refusal() {
    control::HelloReply reply;
    const bool readable = reply.ParseFromString(refusal_);
    const bool other_version = !readable || reply.status() == control::HelloReply::WRONG_VERSION;
    fail((other_version ? "the peer uses another version of the server protocol; use the same release of "
                          "gpupool on both: "
                        : "refused by the peer: ") +
         (readable ? printable(reply.reason().substr(0, kLongestReason))
                   : std::string("cannot parse its answer")));
  }

  void check_proof() {
    const auto channel = target_.tls != 0 ? peers::Channel::encrypted : peers::Channel::plain;
    const auto prove = [&](peers::Side side) {
      return peers::prove(target_.key, side, channel, hello_.nonce, answer_frame_.nonce);
    };
    if (!peers::same(prove(peers::Side::accepting), answer_frame_.proof))
      return fail("authentication failed: the peer does not hold the copy's key");
    proof_ = {prove(peers::Side::connecting)};
    asio::async_write(socket_, asio::buffer(&proof_, sizeof proof_),
                      then("sending the proof", [](Attempt& self) { self.hand_over(); }));
  }

  void hand_over() {
    asio::error_code bad;
    const int descriptor = socket_.release(bad);
    if (bad) return fail(bad.message());
    failed_ = true;  // later handlers do nothing
    Opened opened{.descriptor = descriptor};
    if (target_.tls != 0) {
      const auto key = peers::channel_key(target_.key, hello_.nonce, answer_frame_.nonce);
      opened.protection.channel_key.assign(key.begin(), key.end());
    }
    end(opened);
  }

  PeerConnections& owner_;
  const uint64_t session_, number_;
  const wire::PeerTarget target_;
  const tcp::endpoint endpoint_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  Answer answer_;
  bool failed_ = false;
  wire::Preamble preamble_{};
  wire::PeerHello hello_{};
  wire::PeerAnswer answer_frame_{};
  wire::PeerProof proof_{};
  std::string refusal_;
};

PeerConnections::PeerConnections(asio::io_context& context, Networks networks)
    : context_(context), networks_(std::move(networks)) {}

PeerConnections::~PeerConnections() {
  close();
}

bool PeerConnections::open(uint64_t session, const wire::PeerTarget& target, Answer answer) {
  Session& its = sessions_[session];
  const tcp::endpoint endpoint = endpoint_of(target);
  if (target.port == 0 || !networks_.contains(endpoint.address())) {
    if (!std::exchange(its.logged, true)) {
      log::info("peer_not_allowed", {{"session", session},
                                     {"address", text_of(endpoint)},
                                     {"reason",
                                      "not in --peers: copies to this server go through the client; add its "
                                      "network to --peers if you trust it"}});
    }
    answer({});
    return true;
  }
  if (its.attempts.size() >= kMostWaiting) return false;
  const uint64_t number = next_attempt_++;
  const auto attempt = std::make_shared<Attempt>(*this, session, number, target);
  its.attempts[number] = attempt;
  attempt->begin(its.pace.take(), std::move(answer));
  return true;
}

void PeerConnections::finish(uint64_t session, uint64_t attempt, const Opened& opened) {
  const auto its = sessions_.find(session);
  const auto node = its == sessions_.end() ? decltype(its->second.attempts)::node_type()
                                           : its->second.attempts.extract(attempt);
  const Answer answer = node ? node.mapped()->take_answer() : nullptr;
  if (answer) return answer(opened);
  if (opened.descriptor >= 0) ::close(opened.descriptor);
}

void PeerConnections::drop(uint64_t session) {
  const auto node = sessions_.extract(session);
  if (!node) return;
  for (const auto& [number, attempt] : node.mapped().attempts) attempt->drop();
}

void PeerConnections::close() {
  while (!sessions_.empty()) drop(sessions_.begin()->first);
}

void PeerConnections::give_up() {
  std::vector<Answer> answers;
  for (const auto& [session, its] : sessions_) {
    for (const auto& [number, attempt] : its.attempts) answers.push_back(attempt->take_answer());
  }
  close();
  for (const Answer& answer : answers) answer({});  // may end sessions
}

}  // namespace gpupool::server
