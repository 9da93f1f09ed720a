// Splits a PTX text into tokens, to find its declarations. Internal to protocol/images. One thread per
// object; results point into the text.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpupool::cuda {

inline constexpr auto kIsWord = [] {
  std::array<bool, 256> is{};
  for (const char c : std::string_view("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$%"))
    is[static_cast<unsigned char>(c)] = true;
  return is;
}();

inline bool is_word(char c) {
  return kIsWord[static_cast<unsigned char>(c)];
}

// Tokens are words (".param", "name", "32") and single characters; blank space, comments and strings are
// skipped.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) {}

  // Returns an empty string at the end.
  std::string_view next() {
    skip_blank();
    if (at_ == text_.size()) return {};
    const size_t start = at_++;
    if (text_[start] == '.' || is_word(text_[start])) {
      while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    }
    return text_.substr(start, at_ - start);
  }

  // Skips to behind the next ".entry"; false if there is none.
  bool seek_entry() {
    for (;;) {
      skip_blank();
      if (at_ == text_.size()) return false;
      if (text_[at_] == '.') {
        if (next() == ".entry") return true;
      } else if (is_word(text_[at_])) {
        while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '.'))
          ++at_;  // "ld.param.u64" counts as one word
      } else {
        ++at_;
      }
    }
  }

 private:
  void skip_blank() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == ' ' || (c >= '\t' && c <= '\r')) {
        ++at_;
      } else if (c == '/' && text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '/' && text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else if (c == '"') {
        const size_t end = text_.find('"', at_ + 1);
        at_ = end == std::string_view::npos ? text_.size() : end + 1;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Bytes of one value of a type such as ".u32"; 0: not a type.
inline uint32_t type_size(std::string_view type) {
  constexpr struct {
    std::string_view name;
    uint32_t size;
  } kTypes[] = {{".b8", 1},    {".u8", 1},     {".s8", 1},      {".b16", 2},       {".u16", 2}, {".s16", 2},
                {".f16", 2},   {".bf16", 2},   {".b32", 4},     {".u32", 4},       {".s32", 4}, {".f32", 4},
                {".f16x2", 4}, {".bf16x2", 4}, {".b64", 8},     {".u64", 8},       {".s64", 8}, {".f64", 8},
                {".b128", 16}, {".texref", 8}, {".surfref", 8}, {".samplerref", 8}};
  for (const auto& known : kTypes) {
    if (known.name == type) return known.size;
  }
  return 0;
}

}  // namespace gpupool::cuda
