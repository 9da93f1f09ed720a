// Bounds names that the other side of a connection chooses (programs, hosts, nodes), before they are kept or logged. Used by poold and
// pool-scheduler. Any thread; never fails.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gpupool {

// The first `most` bytes, without a part of a UTF-8 character at the end.
std::string_view cut_text(std::string_view text, size_t most);

constexpr size_t kMostNameBytes = 256;
// The same with kMostNameBytes.
std::string cut_name(std::string_view text);

constexpr size_t kMostBriefBytes = 64;
// For log lines about callers that were refused: at most kMostBriefBytes bytes of ASCII that a log does not escape ('?' stands for every
// other byte), so that the line's length does not depend on what the caller sends.
std::string brief_name(std::string_view text);

}  // namespace gpupool
