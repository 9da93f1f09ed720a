#include "server/softgpu/ptx/lexer.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <string>

namespace gpupool::softgpu::ptx {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_word(char c) {
  return is_letter(c) || is_digit(c) || c == '_' || c == '$';
}
int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

}  // namespace

void Lexer::skip_line() {
  while (at_ < text_.size() && text_[at_] != '\n') ++at_;
}

void Lexer::skip_space() {
  while (at_ < text_.size()) {
    char c = text_[at_];
    if (c == '\n') {
      ++line_;
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      skip_line();
    } else if (text_.substr(at_, 2) == "/*") {
      size_t close = text_.find("*/", at_ + 2);
      size_t stop = close == std::string_view::npos ? text_.size() : close + 2;
      for (; at_ < stop; ++at_) line_ += text_[at_] == '\n';
    } else {
      return;
    }
  }
}

Token Lexer::make(TokenKind kind, size_t begin, size_t end) {
  Token token;
  token.kind = kind;
  token.line = line_;
  token.text = text_.substr(begin, end - begin);
  at_ = end;
  return token;
}

size_t Lexer::word_end(size_t at, bool allow_colons) const {
  while (at < text_.size()) {
    if (is_word(text_[at]))
      ++at;
    else if (allow_colons && text_.substr(at, 2) == "::" && at + 2 < text_.size() && is_word(text_[at + 2]))
      at += 2;
    else
      break;
  }
  return at;
}

Token Lexer::number() {
  size_t begin = at_;
  char kind = begin + 1 < text_.size() && text_[begin] == '0' ? text_[begin + 1] : 0;
  auto digits = [&](size_t from, int base, uint64_t& value) {
    size_t at = from;
    value = 0;
    while (at < text_.size() && digit_value(text_[at]) < base)
      value = value * base + digit_value(text_[at++]);
    return at;
  };
  uint64_t value = 0;
  size_t end;
  if (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D') {
    bool single = kind == 'f' || kind == 'F';
    end = digits(begin + 2, 16, value);
    Token token =
        make(end - begin - 2 == (single ? 8u : 16u) ? TokenKind::real : TokenKind::punctuation, begin, end);
    token.is_single = single;
    // Keep a single as its 32 bits: a conversion to double would change a signalling NaN.
    token.value = value;
    return token;
  }
  if (kind == 'x' || kind == 'X') {
    end = digits(begin + 2, 16, value);
  } else if (kind == 'b' || kind == 'B') {
    end = digits(begin + 2, 2, value);
  } else {
    end = digits(begin, 10, value);
    bool fraction =
        end < text_.size() && text_[end] == '.' && end + 1 < text_.size() && is_digit(text_[end + 1]);
    bool exponent = end < text_.size() && (text_[end] == 'e' || text_[end] == 'E');
    if (fraction || exponent) {
      double real = 0;
      auto [stop, error] = std::from_chars(text_.data() + begin, text_.data() + text_.size(), real);
      Token token = make(error == std::errc{} ? TokenKind::real : TokenKind::punctuation, begin,
                         static_cast<size_t>(stop - text_.data()));
      token.value = std::bit_cast<uint64_t>(real);
      return token;
    }
    if (text_[begin] == '0' && end - begin > 1) end = digits(begin + 1, 8, value);
  }
  if (end < text_.size() && text_[end] == 'U') ++end;
  Token token = make(TokenKind::integer, begin, end);
  token.value = value;
  return token;
}

bool Lexer::at_name() {
  skip_space();
  if (at_ >= text_.size() || text_.substr(at_, 7) == "WARP_SZ") return false;
  return is_letter(text_[at_]) || text_[at_] == '_' || text_[at_] == '$' || text_[at_] == '%';
}

Token Lexer::next() {
  skip_space();
  if (at_ >= text_.size()) return make(TokenKind::end, text_.size(), text_.size());
  char c = text_[at_];
  if (is_letter(c) || c == '_' || c == '$') return make(TokenKind::identifier, at_, word_end(at_, false));
  if (c == '%' && at_ + 1 < text_.size() && is_word(text_[at_ + 1]))
    return make(TokenKind::identifier, at_, word_end(at_ + 1, false));
  if (is_digit(c)) return number();
  if (c == '.' && at_ + 1 < text_.size() && is_word(text_[at_ + 1])) {
    size_t end = word_end(at_ + 1, true);
    Token token = make(TokenKind::dotted, at_ + 1, end);
    return token;
  }
  if (c == '"') {
    size_t close = text_.find('"', at_ + 1);
    if (close != std::string_view::npos) {
      Token token = make(TokenKind::string, at_ + 1, close);
      at_ = close + 1;
      return token;
    }
  }
  return make(TokenKind::punctuation, at_, at_ + 1);
}

}  // namespace gpupool::softgpu::ptx
