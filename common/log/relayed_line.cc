#include "common/log/relayed_line.h"

#include <algorithm>

namespace gpupool::log {
namespace {

constexpr size_t kMostName = 64;
constexpr size_t kMostParts = 64;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMostName && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_';
  });
}

// True for a JSON number without an exponent.
bool is_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const size_t point = std::min(text.find('.'), text.size());
  const std::string_view whole = text.substr(0, point), fraction = text.substr(point);
  const auto digits = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), is_digit);
  };
  return digits(whole) && (whole.size() == 1 || whole[0] != '0') &&
         (fraction.empty() || digits(fraction.substr(1)));
}

bool is_plain_text(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '=';
  });
}

int hexadecimal(char c) {
  if (is_digit(c)) return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Parses a string that append_quoted() in log.cc has written, after its opening quote. On success `rest`
// begins after the closing quote.
bool take_quoted(std::string_view& rest, std::string& out) {
  for (size_t at = 0; at < rest.size(); ++at) {
    const char c = rest[at];
    if (c == '"') {
      rest.remove_prefix(at + 1);
      return true;
    }
    if (c != '\\') {
      out += c;
      continue;
    }
    if (++at == rest.size()) return false;
    if (rest[at] == 'n')
      out += '\n';
    else if (rest[at] == '"' || rest[at] == '\\')
      out += rest[at];
    else if (rest[at] == 'u' && at + 4 < rest.size() && rest.substr(at + 1, 2) == "00") {
      const int high = hexadecimal(rest[at + 3]), low = hexadecimal(rest[at + 4]);
      if (high < 0 || low < 0) return false;
      out += static_cast<char>(high * 16 + low);
      at += 4;
    } else {
      return false;
    }
  }
  return false;
}

std::string_view take_word(std::string_view& rest) {
  const std::string_view word = rest.substr(0, rest.find(' '));
  rest.remove_prefix(word.size());
  return word;
}

bool take_part(std::string_view& rest, RelayedLine& line) {
  const size_t sign = rest.find('=');
  if (!rest.starts_with(' ') || sign == rest.npos) return false;
  RelayedLine::Part part{std::string(rest.substr(1, sign - 1)), "", true};
  rest.remove_prefix(sign + 1);
  if (!is_name(part.key)) return false;
  if (rest.starts_with('"')) {
    rest.remove_prefix(1);
    if (!take_quoted(rest, part.value)) return false;
  } else {
    const std::string_view word = take_word(rest);
    if (!is_plain_text(word)) return false;
    part.value = word;
    part.quoted = !is_number(word);
  }
  line.parts.push_back(std::move(part));
  return true;
}

}  // namespace

std::optional<RelayedLine> parse_relayed(std::string_view text) {
  RelayedLine line{};
  if (!parse(take_word(text), line.level) || line.level == Level::off || !text.starts_with(' '))
    return std::nullopt;
  text.remove_prefix(1);
  line.event = take_word(text);
  if (!is_name(line.event)) return std::nullopt;
  while (!text.empty()) {
    if (line.parts.size() == kMostParts || !take_part(text, line)) return std::nullopt;
  }
  return line;
}

}  // namespace gpupool::log
