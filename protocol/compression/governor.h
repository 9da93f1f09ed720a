// Decides whether the pieces sent in one direction of a bulk connection are compressed. With
// Policy::automatic they are compressed only while that raises the measured throughput. Used by PieceSender;
// belongs to the sending thread; cannot fail.
//
// The governor measures the link's rate from uncompressed pieces, in windows during which the socket was full
// most of the time. While the link is slow enough, it asks for a sample of a piece to be compressed now and
// then. If the sample promises a gain, pieces are compressed and their throughput is compared with the link's
// rate. Compression stops at once if the data does not shrink or nothing is gained; each failed attempt
// doubles the pause before the next sample. If the link is no longer the bottleneck, compression stops so
// that the link is measured again.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gpupool::compression {

enum class Policy : uint32_t { off = 0, automatic = 1, always = 2 };
std::optional<Policy> parse_policy(std::string_view text);  // "off", "auto", "always"

constexpr size_t kSampleBytes = 64 * 1024;

class Governor {
 public:
  using Duration = std::chrono::duration<double>;  // seconds
  enum class Next { plain, plain_with_sample, compressed };

  explicit Governor(Policy policy) : policy_(policy) {}

  Next next() const;
  // Reports a piece of `raw` bytes that was sent: `took` is the time for the whole piece, `blocked` the part
  // of it in which the socket had no room.
  void sent_plain(size_t raw, Duration took, Duration blocked);
  void sampled(size_t raw, size_t packed, Duration took);
  void sent_compressed(size_t raw, size_t packed, Duration took, Duration blocked);

 private:
  struct Window {
    double raw = 0, packed = 0, took = 0, blocked = 0;
    bool full() const;
  };
  void stop_compressing();

  const Policy policy_;
  bool compressing_ = false;
  Window window_;
  double link_rate_ = 0;              // bytes per second; 0: unknown, or the link is not the bottleneck
  bool link_was_bottleneck_ = false;  // in the last window
  unsigned next_sample_ = 0;          // pieces before the next sample
  unsigned sample_pause_ = 8;         // pieces; doubled by each failed attempt
  unsigned windows_without_bottleneck_ = 0;  // consecutive windows in which the link was not the bottleneck
};

}  // namespace gpupool::compression
