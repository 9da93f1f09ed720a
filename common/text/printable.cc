#include "common/text/printable.h"

#include <algorithm>
#include <cstdint>

#include "common/text/names.h"

namespace gpupool {
namespace {

// Returns the length in bytes of the printable character that begins here, or 0 if there is none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  uint32_t code = byte(0) & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool control = code < 0xa0;  // C1 control characters, which terminals interpret
  const bool direction = (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                         (code >= 0x2066 && code <= 0x2069);
  return code < kLeast[length] || code > 0x10ffff || surrogate || control || direction ? 0 : length;
}

}  // namespace

void make_printable(char* text, size_t size) {
  for (std::string_view rest(text, size); !rest.empty();) {
    const size_t length = character_length(rest);
    if (length == 0) text[size - rest.size()] = '?';
    rest.remove_prefix(length == 0 ? 1 : length);
  }
}

std::string printable(std::string_view text) {
  std::string out(text);
  make_printable(out.data(), out.size());
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out(text);
  for (size_t at = 0; at < out.size();) {
    const size_t end = std::min(out.find('\n', at), out.size());
    make_printable(&out[at], end - at);
    at = end + 1;
  }
  return out;
}

std::string printable_message(std::string_view text) {
  constexpr std::string_view kRest = "...";
  if (text.size() <= kMostMessageBytes) return printable(text);
  std::string out = printable(cut_text(text, kMostMessageBytes - kRest.size()));
  return out.append(kRest);
}

}  // namespace gpupool
