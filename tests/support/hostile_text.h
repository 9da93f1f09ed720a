// A malicious text for fields such as names and reasons, and a check that program output is safe to print on
// a terminal.
#pragma once
#include <string>
#include <string_view>

namespace gpupool::testing {

// Sets the terminal's title, clears the screen, returns to the start of the line, changes the colour by a C1
// control in UTF-8, and switches the writing direction.
inline const std::string kHostileText =
    "\x1b]0;owned\a\x1b[2J\r\xc2\x9b"
    "31m\xe2\x80\xae"
    "esrever\x7f";

// Returns true if the output has no control characters except newlines, and no change of the writing
// direction.
inline bool is_harmless(std::string_view output) {
  for (size_t i = 0; i < output.size(); ++i) {
    const auto byte = static_cast<unsigned char>(output[i]);
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f) return false;
    if (byte == 0xc2 && i + 1 < output.size() && static_cast<unsigned char>(output[i + 1]) < 0xa0)
      return false;
  }
  return output.find("\xe2\x80\xae") == output.npos;
}

}  // namespace gpupool::testing
