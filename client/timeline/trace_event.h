// An event of a timeline, and its form in the Chrome trace-event format. Names and texts are not copied: they
// are string literals or interned (Recorder::intern). Any thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpupool::client::timeline {

// Nanoseconds of this host's monotonic clock, the clock of all times in a timeline.
int64_t now();

// The size of a grid or block in one number.
inline uint64_t pack_size(const uint32_t (&size)[3]) {
  return uint64_t{size[0] & 0x7fffffffu} | uint64_t{size[1] & 0xffffu} << 31 |
         uint64_t{size[2] & 0xffffu} << 47;
}

struct TraceEvent {
  struct Argument {
    const char* key = nullptr;  // null: none
    uint64_t value = 0;
    const char* text = nullptr;  // null: `value`
    bool is_size = false;        // `value` is a pack_size()
  };
  static constexpr size_t kMostArguments = 6;

  char phase = 'X';  // X: a span, i: an instant, C: counters, M: a name (`name` is its kind)
  int64_t begin = 0;
  int64_t duration = 0;  // X
  const char* name = "";
  const char* category = "";
  int64_t process = 0;
  uint64_t track = 0;
  std::array<Argument, kMostArguments> arguments{};
};

// Appends the event as a JSON object without newlines.
void append_json(const TraceEvent& event, std::string& out);
// Appends any bytes as a JSON string: what is not well-formed UTF-8, and control characters, become '?'.
void append_json_string(std::string_view text, std::string& out);

}  // namespace gpupool::client::timeline
