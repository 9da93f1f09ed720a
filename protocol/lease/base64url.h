// Encodes bytes as text for files, environment variables and addresses: base64url of RFC 4648 without
// padding. Used for the tokens of leases. No state, any thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace gpupool::lease {

std::string to_base64url(std::string_view bytes);
// Returns nullopt unless `text` is a canonical encoding: no two texts decode to the same bytes.
std::optional<std::string> from_base64url(std::string_view text);

}  // namespace gpupool::lease
