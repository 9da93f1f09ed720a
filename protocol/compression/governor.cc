#include "protocol/compression/governor.h"

#include <algorithm>
#include <utility>

namespace gpupool::compression {
namespace {

constexpr double kWindowBytes = 2 << 20;
constexpr double kWindowSeconds = 0.25;    // a slow link need not be watched for megabytes
// Of the time, blocked: then the link sets the pace. Compressing, it does so as long as the socket fills up at all.
constexpr double kHeldUpPlain = 0.5;
constexpr double kHeldUpCompressed = 0.1;
constexpr double kFastLink = 600e6;        // bytes per second: what LZ4 hardly keeps up with
constexpr double kGainToStart = 1.25;
constexpr double kGainToGoOn = 1.05;
constexpr double kWorthless = 0.9;         // packed to raw
constexpr unsigned kShortestPause = 8;
constexpr unsigned kLongestPause = 512;
constexpr unsigned kWindowsWithoutLink = 16;

}  // namespace

std::optional<Policy> parse_policy(std::string_view text) {
  if (text == "off") return Policy::off;
  if (text == "auto") return Policy::automatic;
  if (text == "always") return Policy::always;
  return std::nullopt;
}

bool Governor::Window::full() const { return raw >= kWindowBytes || took >= kWindowSeconds; }

Governor::Next Governor::next() const {
  if (policy_ != Policy::automatic) return policy_ == Policy::always ? Next::compressed : Next::plain;
  if (compressing_) return Next::compressed;
  return link_rate_ > 0 && next_sample_ == 0 ? Next::plain_with_sample : Next::plain;
}

void Governor::sent_plain(size_t raw, Duration took, Duration blocked) {
  if (policy_ != Policy::automatic) return;
  if (next_sample_ > 0) --next_sample_;
  window_.raw += static_cast<double>(raw);
  window_.took += took.count();
  window_.blocked += blocked.count();
  if (!window_.full()) return;
  const Window window = std::exchange(window_, {});
  const double rate = window.raw / window.took;
  // Only from the second such window on: in the first one the socket's empty memory took most.
  const bool before = std::exchange(held_up_, window.blocked > window.took * kHeldUpPlain);
  link_rate_ = before && held_up_ && rate < kFastLink ? rate : 0;
}

void Governor::sampled(size_t raw, size_t packed, Duration took) {
  const double speed = static_cast<double>(raw) / std::max(took.count(), 1e-9);
  const double ratio = static_cast<double>(packed) / static_cast<double>(raw);
  if (ratio > kWorthless || std::min(speed, link_rate_ / ratio) < link_rate_ * kGainToStart) return give_up();
  compressing_ = true;
  window_ = {};
  unlimited_ = 0;
}

void Governor::sent_compressed(size_t raw, size_t packed, Duration took, Duration blocked) {
  if (policy_ != Policy::automatic || !compressing_) return;
  if (static_cast<double>(packed) > kWorthless * static_cast<double>(raw)) return give_up();
  window_.raw += static_cast<double>(raw);
  window_.packed += static_cast<double>(packed);
  window_.took += took.count();
  window_.blocked += blocked.count();
  if (!window_.full()) return;
  const Window window = std::exchange(window_, {});
  if (window.blocked > window.took * kHeldUpCompressed) {
    link_rate_ = window.packed / window.took;
    unlimited_ = 0;
  } else {
    ++unlimited_;
  }
  if (window.raw / window.took < link_rate_ * kGainToGoOn) return give_up();
  sample_pause_ = kShortestPause;
  if (unlimited_ < kWindowsWithoutLink) return;
  // The link may have become faster than it was when it was last seen to be the limit: look again.
  compressing_ = false;
  held_up_ = false;
  link_rate_ = 0;
  next_sample_ = 0;
}

void Governor::give_up() {
  compressing_ = false;
  window_ = {};
  next_sample_ = sample_pause_;
  sample_pause_ = std::min(sample_pause_ * 2, kLongestPause);
}

}  // namespace gpupool::compression
