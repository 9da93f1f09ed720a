// Tokens: 256 random bits as text, of which poold keeps only the SHA-256. Such a token cannot be guessed, so
// a deliberately slow hash, as for passwords, would only help to overload poold.
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool {

using TokenHash = std::array<unsigned char, 32>;  // SHA-256

constexpr const char* kDefaultTenant = "default";  // where no tenants are configured

// A shorter token is not from make_token() and may be guessable: never accepted.
constexpr size_t kShortestToken = 43;  // 256 bits in base 64

Result<std::string> make_token();
TokenHash hash_token(std::string_view token);
std::string hash_text(const TokenHash& hash);  // as in the configuration, "sha256:..."
// Parses "sha256:" and 64 hexadecimal digits.
Result<TokenHash> parse_token_hash(std::string_view text);

}  // namespace gpupool
