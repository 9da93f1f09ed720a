#include "tests/support/slow_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <stdexcept>

#include "tests/support/loopback.h"

namespace gpupool::testing {
namespace {

constexpr size_t kBlock = 256 * 1024;
constexpr size_t kFinePiece = 16 * 1024;  // with limited bandwidth, for a smooth rate
// Maximum number of bytes in flight per connection and direction; then the sender must wait. With limited
// bandwidth it is the bandwidth-delay product plus kQueue, for a switch's queue.
constexpr size_t kMostOnTheWay = size_t{64} << 20;
constexpr size_t kQueue = size_t{1} << 20;
constexpr int64_t kAwake = 30'000;               // ns before a due time during which it spins
constexpr int64_t kLinkEndCheckNs = 50'000'000;  // ns between checks for the end of the link

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Piece {
  std::unique_ptr<std::byte[]> bytes;
  size_t begin = 0, end = 0;
  int64_t due = 0;
};

// Queue of the data in flight, oldest first. The bytes of one recv() have the same due time.
class Waiting {
 public:
  explicit Waiting(size_t most) : most_(most) {}
  bool empty() const { return pieces_.empty(); }
  bool full() const { return bytes_ >= most_; }
  const Piece& first() const { return pieces_.front(); }
  std::byte* room() {
    if (!fresh_.bytes) {
      if (spare_.empty()) {
        fresh_.bytes = std::make_unique_for_overwrite<std::byte[]>(kBlock);
      } else {
        fresh_.bytes = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    return fresh_.bytes.get();
  }
  void add(size_t bytes, int64_t due) {
    fresh_.end = bytes;
    fresh_.due = due;
    bytes_ += bytes;
    pieces_.push_back(std::exchange(fresh_, Piece{}));
  }
  void drop(size_t bytes) {
    Piece& piece = pieces_.front();
    piece.begin += bytes;
    bytes_ -= bytes;
    if (piece.begin != piece.end) return;
    spare_.push_back(std::move(piece.bytes));
    pieces_.pop_front();
  }

 private:
  const size_t most_;
  std::deque<Piece> pieces_;
  std::vector<std::unique_ptr<std::byte[]>> spare_;
  Piece fresh_;
  size_t bytes_ = 0;
};

void go_first() {
  const sched_param before_all{1};
  sched_setscheduler(0, SCHED_FIFO, &before_all);  // if not permitted, the delay is slightly less exact
  prctl(PR_SET_TIMERSLACK, 1);
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

void set_up(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
}

}  // namespace

struct SlowLink::Pair {
  int client = -1, server = -1;
  std::thread up, down;
};

SlowLink::SlowLink(const transport::Endpoint& server, const Quality& quality)
    : delay_(quality.round_trip.count() / 2), first_unlimited_(quality.first_unlimited) {
  up_.nanoseconds_per_byte = down_.nanoseconds_per_byte =
      quality.bytes_per_second > 0 ? 1e9 / quality.bytes_per_second : 0;
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback_address(0);
  socklen_t length = sizeof address;
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    if (listener_ >= 0) close(listener_);
    throw std::runtime_error("the slow link cannot listen");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this, server] { accept_all(server); });
}

SlowLink::~SlowLink() {
  ending_ = true;
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  for (const auto& pair : pairs_) {
    pair->up.join();
    pair->down.join();
    close(pair->client);
    close(pair->server);
  }
}

void SlowLink::accept_all(const transport::Endpoint& server) {
  while (!ending_) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    const int upstream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback_address(server.port);
    if (upstream < 0 || connect(upstream, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      if (upstream >= 0) close(upstream);
      close(client);
      continue;
    }
    set_up(client);
    set_up(upstream);
    auto pair = std::make_unique<Pair>();
    pair->client = client;
    pair->server = upstream;
    std::lock_guard lock(mutex_);
    const bool unlimited = first_unlimited_ && pairs_.empty();
    Way& up = unlimited ? first_up_ : up_;
    Way& down = unlimited ? first_down_ : down_;
    pair->up = std::thread([this, client, upstream, &up] { carry(client, upstream, up); });
    pair->down = std::thread([this, client, upstream, &down] { carry(upstream, client, down); });
    pairs_.push_back(std::move(pair));
  }
}

void SlowLink::cut(size_t number) {
  std::lock_guard lock(mutex_);
  const Pair& pair = *pairs_.at(number);
  shutdown(pair.client, SHUT_RDWR);
  shutdown(pair.server, SHUT_RDWR);
}

// Returns when the last of these bytes arrives: after the link has sent everything before them, plus the
// delay.
int64_t SlowLink::due(Way& way, int64_t arrived, size_t bytes) const {
  way.bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (way.nanoseconds_per_byte == 0) return arrived + delay_;
  const auto takes = static_cast<int64_t>(static_cast<double>(bytes) * way.nanoseconds_per_byte);
  int64_t free = way.free_at.load();
  int64_t left = 0;
  do {
    left = std::max(free, arrived) + takes;
  } while (!way.free_at.compare_exchange_weak(free, left));
  return left + delay_;
}

void SlowLink::carry(int from, int to, Way& way) {
  if (delay_ > kAwake) go_first();  // not for threads that only spin: they would starve the measured programs
  const auto passing = [&] {
    return static_cast<size_t>(static_cast<double>(2 * delay_) / way.nanoseconds_per_byte);
  };
  Waiting waiting(way.nanoseconds_per_byte == 0 ? kMostOnTheWay
                                                : std::min(kMostOnTheWay, kQueue + passing()));
  bool open = true;  // the sender has not closed its side
  while (!ending_ && (open || !waiting.empty())) {
    bool moved = false;
    if (open && !waiting.full()) {
      const ssize_t received =
          recv(from, waiting.room(), way.nanoseconds_per_byte > 0 ? kFinePiece : kBlock, 0);
      if (received > 0) {
        waiting.add(static_cast<size_t>(received), due(way, now(), static_cast<size_t>(received)));
        moved = true;
      } else if (received == 0 || !would_block()) {
        open = false;
      }
    }
    bool full = false;                                       // the receiver's buffer is full
    if (!waiting.empty() && waiting.first().due <= now()) {  // send one piece, then receive again
      const Piece& piece = waiting.first();
      const ssize_t sent = send(to, piece.bytes.get() + piece.begin, piece.end - piece.begin, MSG_NOSIGNAL);
      if (sent > 0) {
        waiting.drop(static_cast<size_t>(sent));
        moved = true;
      } else if (would_block()) {
        full = true;
      } else {
        shutdown(from, SHUT_RD);
        return;
      }
    }
    if (moved) continue;
    const int64_t left = waiting.empty() || full ? kLinkEndCheckNs : waiting.first().due - now();
    if (left <= kAwake) continue;
    const int64_t sleep = std::min(left - kAwake, kLinkEndCheckNs);
    const timespec timeout{0, static_cast<long>(sleep)};
    pollfd polled[2] = {{open && !waiting.full() ? from : -1, POLLIN, 0}, {full ? to : -1, POLLOUT, 0}};
    ppoll(polled, 2, &timeout, nullptr);
  }
  shutdown(to, SHUT_WR);
}

}  // namespace gpupool::testing
