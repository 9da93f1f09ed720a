// Makes text from another machine safe for terminals, logs and metric labels. poold, pool-scheduler, the
// client libraries and the tools apply it when they receive text. Any thread; the functions that return a
// string allocate.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gpupool {

// Replaces by '?' each byte that is not part of well-formed UTF-8, or that belongs to a control character or
// to a character that changes the writing direction.
std::string printable(std::string_view text);
// Does the same in place; the length does not change.
void make_printable(char* text, size_t size);
// Does the same, but keeps newlines.
std::string printable_lines(std::string_view text);

constexpr size_t kMostMessageBytes = 1024;
// Does the same, and cuts longer texts to kMostMessageBytes bytes, of which the last three are "...".
std::string printable_message(std::string_view text);

}  // namespace gpupool
