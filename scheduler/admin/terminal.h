// Terminal output of pool-admin. Screen is the alternate screen of `pool-admin top`, with unbuffered keys and
// no echo; its destructor restores the terminal. One thread; does not fail.
#pragma once
#include <termios.h>

#include <string>

namespace gpupool::admin {

// Prints to stdout. Replaces control characters other than newlines with question marks, because parts of
// `text` come from other machines.
void show(const std::string& text);

// Returns the width of the terminal in characters; COLUMNS if stdout is not a terminal; else 0, for
// unlimited.
size_t terminal_width();

class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  size_t width() const;
  // Replaces the content of the screen. Omits lines that do not fit, and replaces control characters as
  // show() does.
  void draw(const std::string& text);

 private:
  termios before_{};
  bool has_keys_ = false;
};

}  // namespace gpupool::admin
