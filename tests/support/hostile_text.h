// What another machine may send where a name or a reason is expected, and whether a terminal could be given what became of it.
#pragma once
#include <string>
#include <string_view>

namespace gpupool::testing {

// Sets the title, clears the screen, goes back in the line, changes colours by C1 (in UTF-8), writes backwards.
inline const std::string kHostileText = "\x1b]0;owned\a\x1b[2J\r\xc2\x9b" "31m\xe2\x80\xae" "esrever\x7f";

// No control characters but the ends of lines, no changes of the writing direction.
inline bool is_harmless(std::string_view output) {
  for (size_t i = 0; i < output.size(); ++i) {
    const auto byte = static_cast<unsigned char>(output[i]);
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f) return false;
    if (byte == 0xc2 && i + 1 < output.size() && static_cast<unsigned char>(output[i + 1]) < 0xa0) return false;
  }
  return output.find("\xe2\x80\xae") == output.npos;
}

}  // namespace gpupool::testing
