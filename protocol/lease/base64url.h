// Bytes as text that may stand in files, environments and addresses: base64url of RFC 4648 without padding.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace gpupool::lease {

std::string to_base64url(std::string_view bytes);
// None: it is no such text. The same bytes have no second text.
std::optional<std::string> from_base64url(std::string_view text);

}  // namespace gpupool::lease
