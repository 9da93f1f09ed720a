#include "protocol/text/names.h"

#include <algorithm>

namespace gpupool {
namespace {

constexpr size_t kLongestCharacter = 4;  // of UTF-8, in bytes

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

bool needs_escape(char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; }

}  // namespace

std::string cut_name(std::string_view text) {
  if (text.size() <= kMostNameBytes) return std::string(text);
  size_t end = kMostNameBytes;
  while (end > kMostNameBytes - kLongestCharacter + 1 && continues_character(text[end])) --end;
  return std::string(text.substr(0, end));
}

std::string brief_name(std::string_view text) {
  std::string brief(text.substr(0, kMostBriefBytes));
  std::replace_if(brief.begin(), brief.end(), needs_escape, '?');
  return brief;
}

}  // namespace gpupool
