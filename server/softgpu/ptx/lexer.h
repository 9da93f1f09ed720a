// Splits PTX text into tokens; used by Parser. Never fails: an unknown character becomes a punctuation token
// that no grammar rule accepts.
#pragma once
#include <cstdint>
#include <string_view>

namespace gpupool::softgpu::ptx {

enum class TokenKind : uint8_t {
  end,
  identifier,   // also %register and $label
  dotted,       // .word or .word::word, text without the dot
  integer,      // value
  real,         // value: bits of a float (is_single) or a double
  string,       // text without the quotes
  punctuation,  // one character
};

struct Token {
  TokenKind kind = TokenKind::end;
  bool is_single = false;  // real written as 0f...
  uint32_t line = 0;
  uint64_t value = 0;
  std::string_view text;

  bool is(char c) const { return kind == TokenKind::punctuation && text[0] == c; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();
  bool at_name();    // returns whether the name of a register or symbol follows
  void skip_line();  // for .loc and .file, which end with their line, not with a semicolon

 private:
  void skip_space();
  Token number();
  size_t word_end(size_t at, bool allow_colons) const;
  Token make(TokenKind kind, size_t begin, size_t end);

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

}  // namespace gpupool::softgpu::ptx
