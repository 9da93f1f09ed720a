// Makes text of another machine fit for a terminal, a log or a metric's label. poold, pool-scheduler, the client libraries and the tools use it where
// such text arrives. Any thread; the forms that return a string allocate.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gpupool {

// Well-formed UTF-8 without control characters and characters that change the writing direction; '?' stands for every byte of the rest.
std::string printable(std::string_view text);
// The same in place; `text` keeps its length.
void make_printable(char* text, size_t size);
// The same, but keeps the ends of lines: for output of several lines.
std::string printable_lines(std::string_view text);

constexpr size_t kMostMessageBytes = 1024;
// For a reason or an error: at most kMostMessageBytes bytes, printable; "..." at the end stands for the rest.
std::string printable_message(std::string_view text);

}  // namespace gpupool
