#include "protocol/compression/governor.h"

#include <algorithm>
#include <utility>

namespace gpupool::compression {
namespace {

constexpr double kWindowBytes = 2 << 20;
constexpr double kWindowSeconds = 0.25;  // judges a slow link before 2 MiB have been sent
// The link counts as the bottleneck if sending was blocked for more than this fraction of the time. While
// compressing, a smaller fraction shows it.
constexpr double kBlockedPlain = 0.5;
constexpr double kBlockedCompressed = 0.1;
constexpr double kFastLink = 600e6;  // bytes per second; LZ4 hardly compresses faster
constexpr double kGainToStart = 1.25;
constexpr double kGainToContinue = 1.05;
constexpr double kMaxPackedRatio = 0.9;  // packed / raw bytes: compression is useless above this
constexpr unsigned kShortestPause = 8;
constexpr unsigned kLongestPause = 512;
constexpr unsigned kMaxWindowsWithoutBottleneck = 16;

}  // namespace

std::optional<Policy> parse_policy(std::string_view text) {
  if (text == "off") return Policy::off;
  if (text == "auto") return Policy::automatic;
  if (text == "always") return Policy::always;
  return std::nullopt;
}

bool Governor::Window::full() const {
  return raw >= kWindowBytes || took >= kWindowSeconds;
}

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
  // The link counts as the bottleneck from the second such window on: in the first one, sends mostly filled
  // the empty socket buffer.
  const bool before = std::exchange(link_was_bottleneck_, window.blocked > window.took * kBlockedPlain);
  link_rate_ = before && link_was_bottleneck_ && rate < kFastLink ? rate : 0;
}

void Governor::sampled(size_t raw, size_t packed, Duration took) {
  const double speed = static_cast<double>(raw) / std::max(took.count(), 1e-9);
  const double ratio = static_cast<double>(packed) / static_cast<double>(raw);
  if (ratio > kMaxPackedRatio || std::min(speed, link_rate_ / ratio) < link_rate_ * kGainToStart)
    return stop_compressing();
  compressing_ = true;
  window_ = {};
  windows_without_bottleneck_ = 0;
}

void Governor::sent_compressed(size_t raw, size_t packed, Duration took, Duration blocked) {
  if (policy_ != Policy::automatic || !compressing_) return;
  if (static_cast<double>(packed) > kMaxPackedRatio * static_cast<double>(raw)) return stop_compressing();
  window_.raw += static_cast<double>(raw);
  window_.packed += static_cast<double>(packed);
  window_.took += took.count();
  window_.blocked += blocked.count();
  if (!window_.full()) return;
  const Window window = std::exchange(window_, {});
  if (window.blocked > window.took * kBlockedCompressed) {
    link_rate_ = window.packed / window.took;
    windows_without_bottleneck_ = 0;
  } else {
    ++windows_without_bottleneck_;
  }
  if (window.raw / window.took < link_rate_ * kGainToContinue) return stop_compressing();
  sample_pause_ = kShortestPause;
  if (windows_without_bottleneck_ < kMaxWindowsWithoutBottleneck) return;
  // The link may have become faster since it was last the bottleneck: measure it again.
  compressing_ = false;
  link_was_bottleneck_ = false;
  link_rate_ = 0;
  next_sample_ = 0;
}

void Governor::stop_compressing() {
  compressing_ = false;
  window_ = {};
  next_sample_ = sample_pause_;
  sample_pause_ = std::min(sample_pause_ * 2, kLongestPause);
}

}  // namespace gpupool::compression
