#include "tests/support/cutting_relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "protocol/transport/shm/address.h"

namespace gpupool::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRelayEndCheckMs = 20;  // between checks of a blocked thread for its end
constexpr size_t kMostPassed = 8;     // descriptors in one message

constexpr ssize_t kOfferBytes = 8;  // of the message with the rings (protocol/transport/shm/upgrade.cc)

enum class Passed { nothing, bytes, descriptors, end };

// Passes one message on, with its descriptors.
Passed pass_message(int from, int to) {
  std::array<char, 4096> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostPassed)> control;
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t received = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  if (received <= 0) return Passed::end;
  const bool has_descriptors = message.msg_controllen != 0;
  if (!has_descriptors) message.msg_control = nullptr;
  // Bytes before those of the message with descriptors may have come with it. They must not carry them: the
  // receiver does not expect any there.
  const ssize_t before = has_descriptors ? std::max<ssize_t>(received - kOfferBytes, 0) : 0;
  bool sent = before == 0 || ::send(to, bytes.data(), static_cast<size_t>(before), MSG_NOSIGNAL) == before;
  part = {bytes.data() + before, static_cast<size_t>(received - before)};
  sent = sent && ::sendmsg(to, &message, MSG_NOSIGNAL) == received - before;
  for (cmsghdr* at = has_descriptors ? CMSG_FIRSTHDR(&message) : nullptr; at;
       at = CMSG_NXTHDR(&message, at)) {
    const auto* const descriptors = reinterpret_cast<const int*>(CMSG_DATA(at));
    for (size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) ::close(descriptors[i]);
  }
  return !sent ? Passed::end : has_descriptors ? Passed::descriptors : Passed::bytes;
}

}  // namespace

struct CuttingRelay::Line {
  int client = -1, server = -1;
  Clock::duration time{};  // until the cut
  std::thread thread;
};

CuttingRelay::CuttingRelay(std::string path, const transport::Endpoint& server,
                           std::chrono::milliseconds mean, uint32_t seed)
    : path_(std::move(path)), mean_(mean), random_(seed) {
  const auto address = transport::shm::make_address({"shm", path_, 0});
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!address || listener_ < 0 || ::bind(listener_, address->get(), address->size) != 0 ||
      ::listen(listener_, 64) != 0)
    throw std::runtime_error("cannot listen at " + path_);
  acceptor_ = std::thread([this, server] { accept(server); });
}

CuttingRelay::~CuttingRelay() {
  ending_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  ::close(listener_);
  for (const auto& line : lines_) line->thread.join();
}

void CuttingRelay::accept(const transport::Endpoint& server) {
  const auto address = transport::shm::make_address(server);
  while (!ending_) {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int upstream = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!address || ::connect(upstream, address->get(), address->size) != 0) {
      ::close(upstream);
      ::close(client);
      continue;
    }
    const std::lock_guard lock(mutex_);
    Line& line = *lines_.emplace_back(std::make_unique<Line>());
    line.client = client;
    line.server = upstream;
    std::exponential_distribution<double> until_cut(1.0 / static_cast<double>(mean_.count()));
    line.time = std::chrono::microseconds(static_cast<int64_t>(1000 * until_cut(random_)));
    line.thread = std::thread([this, &line] { pass(line); });
  }
}

void CuttingRelay::pass(Line& line) {
  // The client has mapped the rings when it sends something behind the message with them, or soon after that.
  constexpr std::chrono::milliseconds kLongestUpgrade{300};
  auto end = Clock::time_point::max();
  bool has_rings = false, works = false;
  for (bool open = true; open && !ending_;) {
    pollfd polled[2] = {{line.client, POLLIN, 0}, {line.server, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int64_t patience = end == Clock::time_point::max() ? kRelayEndCheckMs : left;
    ::poll(polled, 2, static_cast<int>(std::clamp<int64_t>(patience, 0, kRelayEndCheckMs)));
    if (Clock::now() >= end) {
      ++cuts_;
      break;
    }
    for (int side = 0; side < 2 && open; ++side) {
      if (polled[side].revents == 0) continue;
      const Passed passed = pass_message(polled[side].fd, polled[1 - side].fd);
      open = passed != Passed::end;
      if (passed == Passed::descriptors && !has_rings) {
        has_rings = true;
        end = Clock::now() + kLongestUpgrade + line.time;
      } else if (has_rings && !works && side == 0) {
        works = true;
        end = Clock::now() + line.time;
      }
    }
  }
  ::close(line.client);
  ::close(line.server);
}

}  // namespace gpupool::testing
