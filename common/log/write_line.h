// Writes a line to a log's descriptor.
#pragma once
#include <string_view>

namespace gpupool::log {

// Writes the whole line, however long that takes. Returns false, with errno, if it cannot be written.
bool write_line(int descriptor, std::string_view line);
// The same, but leaves the unwritten rest in `line`.
bool write_rest(int descriptor, std::string_view& line);

}  // namespace gpupool::log
