// Bounds names that the other side of a connection chooses (programs, hosts, nodes) before they are kept or
// logged. Used by poold, pool-scheduler and the client library. Any thread; never fails.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gpupool {

// Returns the first `most` bytes, less an incomplete UTF-8 character at the end.
std::string_view cut_text(std::string_view text, size_t most);

constexpr size_t kMostNameBytes = 256;
// Applies cut_text() with kMostNameBytes.
std::string cut_name(std::string_view text);

constexpr size_t kMostBriefBytes = 64;
// For log lines about refused callers: the first kMostBriefBytes bytes, with '?' for each byte that is not
// printable ASCII or that a log would escape. So the line's length does not depend on the caller's bytes.
std::string brief_name(std::string_view text);

}  // namespace gpupool
