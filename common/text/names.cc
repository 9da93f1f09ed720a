#include "common/text/names.h"

#include <algorithm>

namespace gpupool {
namespace {

constexpr size_t kLongestCharacter = 4;  // of UTF-8, in bytes

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

bool needs_escape(char c) {
  return c < ' ' || c > '~' || c == '"' || c == '\\';
}

}  // namespace

std::string_view cut_text(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && end + kLongestCharacter > most + 1 && continues_character(text[end])) --end;
  return text.substr(0, end);
}

std::string cut_name(std::string_view text) {
  return std::string(cut_text(text, kMostNameBytes));
}

std::string brief_name(std::string_view text) {
  std::string brief(text.substr(0, kMostBriefBytes));
  std::replace_if(brief.begin(), brief.end(), needs_escape, '?');
  return brief;
}

}  // namespace gpupool
