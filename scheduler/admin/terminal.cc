#include "scheduler/admin/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/text/printable.h"

namespace gpupool::admin {
namespace {

constexpr size_t kUsualWidth = 80;
constexpr size_t kUsualHeight = 24;
// Switch to the alternate screen and hide the cursor; and back.
constexpr std::string_view kBegin = "\x1b[?1049h\x1b[?25l";
constexpr std::string_view kEnd = "\x1b[?25h\x1b[?1049l";

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

winsize size_of_terminal() {
  winsize size{};
  ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  if (size.ws_col == 0) size.ws_col = kUsualWidth;
  if (size.ws_row == 0) size.ws_row = kUsualHeight;
  return size;
}

}  // namespace

void show(const std::string& text) {
  std::fputs(printable_lines(text).c_str(), stdout);
}

size_t terminal_width() {
  if (::isatty(STDOUT_FILENO)) return size_of_terminal().ws_col;
  const char* const columns = std::getenv("COLUMNS");
  return columns ? std::strtoul(columns, nullptr, 10) : 0;
}

Screen::Screen() {
  has_keys_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
  if (has_keys_) {
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // Ctrl-Z would leave the terminal in this state
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  put(kBegin);
}

Screen::~Screen() {
  put(kEnd);
  if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

size_t Screen::width() const {
  return size_of_terminal().ws_col;
}

void Screen::draw(const std::string& text) {
  std::string out = "\x1b[H";
  const std::string lines_of_text = printable_lines(text);
  std::string_view rest = lines_of_text;
  size_t lines = size_of_terminal().ws_row;
  for (; lines != 0 && !rest.empty(); --lines) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    out += rest.substr(0, end);
    out += "\x1b[K";  // to the end of the line
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (lines > 1 && !rest.empty()) out += "\r\n";
  }
  put(out + "\x1b[J");
}

}  // namespace gpupool::admin
