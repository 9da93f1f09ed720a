// Makes text from another machine safe for terminals, logs and metric labels. poold, pool-scheduler, the
// client libraries and the tools apply it when they receive text. Any thread; the functions that return a
// string allocate.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gpupool {

// Replaces each byte by '?' that is not well-formed UTF-8, or belongs to a control character or to one that
// changes the writing direction.
std::string printable(std::string_view text);
// Works as printable(), in place: the length does not change.
void make_printable(char* text, size_t size);
// Works as printable(), but keeps newlines.
std::string printable_lines(std::string_view text);

constexpr size_t kMostMessageBytes = 1024;
// Works as printable(), and cuts the text to kMostMessageBytes bytes, the last three of which are then "...".
std::string printable_message(std::string_view text);

}  // namespace gpupool
