// Tokens: 256 random bits as text, of which poold keeps only the SHA-256. Nobody can guess such a token, so a hash that is slow on
// purpose (as passwords need) would only help those who want to keep poold busy.
#pragma once
#include <string>
#include <string_view>

#include "protocol/wire/result.h"
#include "server/tenants/tenant.h"

namespace gpupool::server {

// What is shorter has been made by somebody else, and may be guessed: never accepted.
constexpr size_t kShortestToken = 43;  // 256 bits in base 64

Result<std::string> make_token();
TokenHash hash_token(std::string_view token);
std::string hash_text(const TokenHash& hash);  // as in the configuration, "sha256:..."
// "sha256:" and 64 hexadecimal digits.
Result<TokenHash> parse_token_hash(std::string_view text);

}  // namespace gpupool::server
