// How a connection gets its queue pairs: both sides say where theirs are, connect them, try them, and agree each time. Whoever
// finds that it cannot be says so, and both stay with TCP.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "rdma/connection.h"

namespace gpupool::transport::rdma {
namespace {

constexpr uint32_t kMagic = 0x414d4452;  // "RDMA"
constexpr uint32_t kVersion = 1;
// The trial message takes its retries to fail where packets get lost on the way, for example in a firewall.
constexpr std::chrono::seconds kTrial{5};

struct Card {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t usable = 0;
  uint32_t receives = 0;
  Address stream;
  Address direct;
  char why_not[160] = "";
};
static_assert(sizeof(Card) == 240 && std::is_trivially_copyable_v<Card>);

struct Verdict {
  uint32_t good = 0;
  char why_not[156] = "";
};
static_assert(sizeof(Verdict) == 160 && std::is_trivially_copyable_v<Verdict>);

template <size_t size>
void put_text(char (&to)[size], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), size - 1));
}

// The peer's words go into log lines.
template <size_t size>
std::string text_of(const char (&from)[size]) {
  std::string text(from, ::strnlen(from, size));
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return text;
}

template <class Body>
std::span<std::byte> bytes_of(Body& body) {
  return std::as_writable_bytes(std::span(&body, 1));
}

}  // namespace

Result<void> RdmaConnection::upgrade(Side side, Deadline deadline) {
  if (options_.use == RdmaOptions::Use::never && side == Side::client) return {};
  const std::string problem = prepare(side);
  Card mine;
  mine.usable = problem.empty();
  put_text(mine.why_not, problem);
  if (stream_) {
    mine.receives = stream_->receives();
    mine.stream = stream_->address();
  }
  if (direct_) mine.direct = direct_->address();
  Card theirs;
  if (auto exchanged = exchange(bytes_of(mine), bytes_of(theirs), deadline); !exchanged) return exchanged;
  if (theirs.magic != kMagic) return Error{ErrorCode::malformed, peer() + " does not speak of rdma"};
  std::string why = problem;
  if (why.empty() && theirs.version != kVersion) why = "the peer speaks another version of the rdma protocol";
  if (why.empty() && theirs.usable == 0) why = "the peer: " + text_of(theirs.why_not);
  if (problem.empty() && theirs.usable != 0 && theirs.version == kVersion) {
    Result<void> connected = stream_->connect(theirs.stream, theirs.receives, options_);
    if (connected && direct_ && theirs.direct.queue_pair != 0) connected = direct_->connect(theirs.direct, options_);
    else direct_.reset();
    auto agreed = agree(connected, deadline);
    if (!agreed) return agreed.error();
    why = *agreed;
    if (why.empty()) {
      agreed = agree(stream_->probe(Clock::now() + kTrial), deadline);
      if (!agreed) return agreed.error();
      why = *agreed;
    }
  }
  if (why.empty()) {
    carrier_ = "rdma (" + domain_->device().text() + ")";
    upgraded_.store(true, std::memory_order_release);
    return {};
  }
  direct_.reset();
  stream_.reset();
  domain_.reset();
  if (options_.use == RdmaOptions::Use::always) return Error{ErrorCode::unavailable, "no rdma with " + peer() + ": " + why};
  carrier_ = "tcp (no rdma: " + why + ")";
  return {};
}

std::string RdmaConnection::prepare(Side side) {
  if (options_.use == RdmaOptions::Use::never) return "rdma is switched off";
  if (!domain_) {
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    ::getsockname(socket(), reinterpret_cast<sockaddr*>(&local), &size);
    auto domain = Domain::open(options_, local);
    if (!domain) return domain.error().message;
    domain_ = std::move(*domain);
  }
  auto stream = Stream::make(domain_, bulk_);
  if (!stream) return stream.error().message;
  stream_ = std::move(*stream);
  if (bulk_) return {};
  auto direct = DataChannel::make(domain_, side);
  if (!direct) return direct.error().message;
  direct_ = std::move(*direct);
  return {};
}

Result<void> RdmaConnection::exchange(std::span<const std::byte> mine, std::span<std::byte> theirs, Deadline deadline) {
  const iovec part{const_cast<std::byte*>(mine.data()), mine.size()};
  if (auto sent = send_all(*this, {&part, 1}, deadline); !sent) return sent;
  return receive_exact(*this, theirs, deadline);
}

Result<std::string> RdmaConnection::agree(const Result<void>& mine, Deadline deadline) {
  Verdict verdict, theirs;
  verdict.good = mine.ok();
  if (!mine) put_text(verdict.why_not, mine.error().message);
  if (auto exchanged = exchange(bytes_of(verdict), bytes_of(theirs), deadline); !exchanged) return exchanged.error();
  if (!mine) return mine.error().message;
  return theirs.good != 0 ? std::string() : "the peer: " + text_of(theirs.why_not);
}

}  // namespace gpupool::transport::rdma
