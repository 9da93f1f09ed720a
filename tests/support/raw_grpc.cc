#include "tests/support/raw_grpc.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "tests/support/loopback.h"

namespace gpupool::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Frames and flags of RFC 9113.
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoaway = 7,
                  kWindowUpdate = 8;
constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;
constexpr uint16_t kInitialWindowSize = 4;
constexpr size_t kHeadBytes = 9, kMostOfFrame = 16'384, kMostWaiting = 1 << 20;
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string big_endian(uint64_t number, int bytes) {
  std::string text;
  for (int at = bytes - 1; at >= 0; --at) text += static_cast<char>(number >> (8 * at));
  return text;
}
uint32_t number_at(const std::string& text, size_t at, size_t bytes) {
  uint32_t number = 0;
  for (size_t i = 0; i < bytes; ++i) number = number << 8 | static_cast<uint8_t>(text[at + i]);
  return number;
}

constexpr int kPatienceMs = 20'000;

// A string of HPACK of less than 127 bytes.
std::string hpack(const std::string& text) {
  return static_cast<char>(text.size()) + text;
}
const std::string kContentType = "\x0f\x10" + hpack("application/grpc");

}  // namespace

RawGrpc::Listener::Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in own = loopback_address(0);
  socklen_t size = sizeof own;
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (socket_ < 0 || ::bind(socket_, address, size) != 0 || ::listen(socket_, 16) != 0 ||
      ::getsockname(socket_, address, &size) != 0)
    throw std::runtime_error("cannot listen on 127.0.0.1");
  port_ = ntohs(own.sin_port);
}

RawGrpc::Listener::~Listener() {
  ::close(socket_);
}

int RawGrpc::Listener::accept_socket() {
  pollfd polled{socket_, POLLIN, 0};
  const int accepted =
      ::poll(&polled, 1, kPatienceMs) == 1 ? ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC) : -1;
  if (accepted < 0) throw std::runtime_error("no client has connected");
  return accepted;
}

RawGrpc RawGrpc::Listener::accept() {
  return RawGrpc(accept_socket(), true);
}

int RawGrpc::Listener::accept_first_byte() {
  const int socket = accept_socket();
  pollfd polled{socket, POLLIN, 0};
  unsigned char first = 0;
  const bool came = ::poll(&polled, 1, kPatienceMs) == 1 && ::recv(socket, &first, 1, 0) == 1;
  ::close(socket);
  return came ? first : -1;
}

RawGrpc RawGrpc::connect(uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = loopback_address(port);
  if (socket < 0 || ::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    throw std::runtime_error("cannot connect to 127.0.0.1:" + std::to_string(port));
  return RawGrpc(socket, false);
}

RawGrpc RawGrpc::connect(const std::string& path) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof to.sun_path - 1);
  if (socket < 0 || ::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    throw std::runtime_error("cannot connect to " + path);
  return RawGrpc(socket, false);
}

RawGrpc::RawGrpc(int socket, bool serves) : socket_(socket), serves_(serves) {
  ::fcntl(socket_, F_SETFL, O_NONBLOCK);
  if (!serves_) out_ = kPreface;
  put_frame(kSettings, 0, 0, "");
}

RawGrpc::RawGrpc(RawGrpc&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      serves_(other.serves_),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      calls_(std::move(other.calls_)),
      next_stream_(other.next_stream_) {}

RawGrpc::~RawGrpc() {
  if (socket_ >= 0) ::close(socket_);
}

void RawGrpc::put_frame(uint8_t kind, uint8_t flags, uint32_t stream, const std::string& body) {
  out_ += big_endian(body.size(), 3) + static_cast<char>(kind) + static_cast<char>(flags) +
          big_endian(stream, 4) + body;
}

void RawGrpc::begin(uint32_t stream, uint32_t promised) {
  calls_[stream] = {initial_window_, promised, std::string(1, '\0') + big_endian(promised, 4)};
}

void RawGrpc::call(const std::string& method, uint32_t promised) {
  // Entries of HPACK's static table: POST, http, :path, :authority, content-type.
  put_frame(kHeaders, kEndHeaders, next_stream_,
            "\x83\x86\x04" + hpack(method) + "\x01" + hpack("x") + kContentType + std::string(1, '\0') +
                hpack("te") + hpack("trailers"));
  begin(next_stream_, promised);
  next_stream_ += 2;
}

bool RawGrpc::answer_next_call(uint32_t promised) {
  const auto end = Clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (asked_ == 0 && !gone_ && Clock::now() < end) {
    write_some();
    pollfd polled{socket_, POLLIN, 0};
    ::poll(&polled, 1, 100);
    read_some();
  }
  if (asked_ == 0) return false;
  put_frame(kHeaders, kEndHeaders, asked_, "\x88" + kContentType);  // :status 200
  begin(std::exchange(asked_, 0), promised);
  return true;
}

uint64_t RawGrpc::send(uint64_t most) {
  const uint64_t before = accepted_;
  auto last = Clock::now();
  while (!refused() && accepted_ - before < most && Clock::now() - last < std::chrono::seconds(1)) {
    fill();
    if (write_some()) last = Clock::now();
    pollfd polled{socket_, static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)), 0};
    ::poll(&polled, 1, 100);
    read_some();
  }
  return accepted_ - before;
}

// Makes DATA frames as far as the peer's windows permit.
void RawGrpc::fill() {
  for (auto& [stream, call] : calls_) {
    while (out_.size() < kMostWaiting && call.left + call.head.size() > 0) {
      const int64_t room = std::min({window_, call.window, static_cast<int64_t>(kMostOfFrame)});
      if (room <= 0) break;
      std::string body = call.head.substr(0, static_cast<size_t>(room));
      call.head.erase(0, body.size());
      const size_t zeroes = std::min<uint64_t>(call.left, static_cast<size_t>(room) - body.size());
      body.append(zeroes, '\0');
      call.left -= zeroes;
      window_ -= static_cast<int64_t>(body.size());
      call.window -= static_cast<int64_t>(body.size());
      put_frame(kData, 0, stream, body);
    }
  }
}

// Returns true if the peer has taken some bytes.
bool RawGrpc::write_some() {
  if (out_.empty() || gone_) return false;
  const ssize_t sent = ::send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);
  if (sent < 0) {
    gone_ = gone_ || (errno != EAGAIN && errno != EINTR);
    return false;
  }
  out_.erase(0, static_cast<size_t>(sent));
  accepted_ += static_cast<uint64_t>(sent);
  return true;
}

void RawGrpc::read_some() {
  char bytes[65'536];
  ssize_t got = 0;
  while ((got = ::recv(socket_, bytes, sizeof bytes, 0)) > 0) in_.append(bytes, static_cast<size_t>(got));
  gone_ = gone_ || got == 0 || (errno != EAGAIN && errno != EINTR);
  if (serves_ && in_.starts_with(kPreface)) in_.erase(0, kPreface.size());
  while (in_.size() >= kHeadBytes) {
    const size_t length = number_at(in_, 0, 3);
    if (in_.size() < kHeadBytes + length) return;
    const auto kind = static_cast<uint8_t>(in_[3]), flags = static_cast<uint8_t>(in_[4]);
    const uint32_t stream = number_at(in_, 5, 4) & 0x7fff'ffff;
    const std::string body = in_.substr(kHeadBytes, length);
    in_.erase(0, kHeadBytes + length);
    take(kind, flags, stream, body);
  }
}

void RawGrpc::take(uint8_t kind, uint8_t flags, uint32_t stream, const std::string& body) {
  const auto call = calls_.find(stream);
  switch (kind) {
    case kSettings:
      if ((flags & kAck) == 0) take_settings(body);
      return;
    case kPing:
      if ((flags & kAck) == 0) put_frame(kPing, kAck, 0, body);
      return;
    case kWindowUpdate:
      if (stream == 0) window_ += number_at(body, 0, 4);
      if (call != calls_.end()) call->second.window += number_at(body, 0, 4);
      return;
    case kHeaders:
      if (serves_) asked_ = stream;
      if (!serves_ && (flags & kEndStream) != 0) calls_.erase(stream);
      return;
    case kReset: calls_.erase(stream); return;
    case kGoaway: gone_ = number_at(body, 4, 4) != 0; return;  // with an error
    default: return;
  }
}

void RawGrpc::take_settings(const std::string& body) {
  for (size_t at = 0; at + 6 <= body.size(); at += 6) {
    if (number_at(body, at, 2) != kInitialWindowSize) continue;
    const int64_t size = number_at(body, at + 2, 4);
    for (auto& [stream, call] : calls_) call.window += size - initial_window_;
    initial_window_ = size;
  }
  put_frame(kSettings, kAck, 0, "");
}

}  // namespace gpupool::testing
