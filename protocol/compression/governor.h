// Decides for one direction of one connection whether its pieces are compressed: when that makes them arrive sooner, as
// measured on the way, and not otherwise.
//
// Uncompressed pieces tell how fast the link takes data, as long as it is the link that sending waits for. While it is, and
// is slow enough, a sample of a piece is compressed now and then; where the sample promises a gain, pieces are compressed,
// and what they really achieve is held against the link. Data that does not shrink, or a link that no longer holds sending
// up, ends it at once; fruitless attempts become ever rarer. Belongs to the thread that sends.
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
  // What became of a piece of `raw` bytes: how long the whole of it took the thread, and for how much of that the socket
  // had no room.
  void sent_plain(size_t raw, Duration took, Duration blocked);
  void sampled(size_t raw, size_t packed, Duration took);
  void sent_compressed(size_t raw, size_t packed, Duration took, Duration blocked);

 private:
  struct Window {
    double raw = 0, packed = 0, took = 0, blocked = 0;
    bool full() const;
  };
  void give_up();

  const Policy policy_;
  bool compressing_ = false;
  Window window_;
  double link_rate_ = 0;        // bytes per second; 0: not known, or not what sending waits for
  bool held_up_ = false;        // by the link, in the last window
  unsigned next_sample_ = 0;    // pieces until then
  unsigned sample_pause_ = 8;   // pieces
  unsigned unlimited_ = 0;      // windows in which the link waited for compression
};

}  // namespace gpupool::compression
