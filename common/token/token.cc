#include "common/token/token.h"

#include <openssl/sha.h>
#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <span>
#include <system_error>

namespace gpupool {
namespace {

constexpr std::string_view kPrefix = "sha256:";

std::string hexadecimal(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

Result<std::string> make_token() {
  std::array<unsigned char, 32> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return Error{ErrorCode::unavailable,
                 "cannot get random numbers: " + std::generic_category().message(errno)};
  }
  return hexadecimal(random);
}

TokenHash hash_token(std::string_view token) {
  TokenHash hash{};
  ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

std::string hash_text(const TokenHash& hash) {
  return std::string(kPrefix) + hexadecimal(hash);
}

Result<TokenHash> parse_token_hash(std::string_view text) {
  TokenHash hash{};
  bool good = text.size() == kPrefix.size() + 2 * hash.size() && text.starts_with(kPrefix);
  for (size_t i = 0; good && i < hash.size(); ++i) {
    const char* const pair = text.data() + kPrefix.size() + 2 * i;
    const auto [end, status] = std::from_chars(pair, pair + 2, hash[i], 16);
    good = status == std::errc() && end == pair + 2;
  }
  if (!good)
    return Error{ErrorCode::invalid,
                 "must be \"sha256:\" and 64 hexadecimal digits, as poold --make-token prints them"};
  return hash;
}

}  // namespace gpupool
