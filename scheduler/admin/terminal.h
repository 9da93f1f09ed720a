// The terminal while `pool-admin top` draws on it: its own screen, keys without echo. Put back by the destructor.
#pragma once
#include <termios.h>

#include <string>

namespace gpupool::admin {

// Prints on stdout. Control characters of `text` but the ends of lines become question marks: parts of it come from other machines.
void show(const std::string& text);

// Characters in a line of the terminal that stdout is; if it is none, COLUMNS. 0: as many as it takes.
size_t terminal_width();

class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  size_t width() const;
  // In the place of what is there, as show() does. Lines that do not fit are left out.
  void draw(const std::string& text);

 private:
  termios before_{};
  bool has_keys_ = false;
};

}  // namespace gpupool::admin
