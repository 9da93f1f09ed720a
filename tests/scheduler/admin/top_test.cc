// Tests of `pool-admin top` on a terminal, with redirected output, and when poold ends.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/server/fake_device_library.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/poold_process.h"
#include "tests/support/raw_client.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// Runs `pool-admin top` on a pseudo terminal.
class OnTerminal {
 public:
  explicit OnTerminal(const PooldProcess& poold) {
    winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    int slave = -1;
    REQUIRE(::openpty(&master_, &slave, nullptr, nullptr, &size) == 0);
    REQUIRE(::tcgetattr(slave, &before) == 0);
    const std::string program = program_path("pool-admin"), where = "unix:" + poold.admin_socket();
    child_ = ::fork();
    if (child_ == 0) {
      ::close(master_);
      ::login_tty(slave);
      ::execl(program.c_str(), "pool-admin", "--poold", where.c_str(), "top", "--interval", "0.1", nullptr);
      ::_exit(127);
    }
    slave_ = slave;  // stays open to read the terminal's settings
  }
  ~OnTerminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(master_);
    ::close(slave_);
  }
  bool await(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!has(seen, text) && std::chrono::steady_clock::now() < end) read_some();
    return has(seen, text);
  }
  void press(const std::string& keys) {
    REQUIRE(::write(master_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  void resize(unsigned short columns) {
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(master_, TIOCSWINSZ, &size) == 0);
  }
  // Waits for the end and returns the exit status, or 128 + signal number.
  int wait() {
    int status = -1;
    const bool ended = eventually([&] {
      read_some();
      return ::waitpid(child_, &status, WNOHANG) == child_;
    });
    REQUIRE(ended);
    child_ = -1;
    for (int i = 0; i < 20; ++i) read_some();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  termios now() const {
    termios settings{};
    ::tcgetattr(slave_, &settings);
    return settings;
  }

  termios before{};
  std::string seen;

 private:
  void read_some() {
    pollfd polled{master_, POLLIN, 0};
    if (::poll(&polled, 1, 10) != 1) return;
    char bytes[4096];
    const ssize_t count = ::read(master_, bytes, sizeof bytes);
    if (count > 0) seen.append(bytes, static_cast<size_t>(count));
  }
  int master_ = -1, slave_ = -1;
  pid_t child_ = -1;
};

void check_restored(const OnTerminal& top) {
  CHECK(has(top.seen, "\x1b[?1049h"));
  CHECK(has(top.seen, "\x1b[?25h"));    // shows the cursor
  CHECK(has(top.seen, "\x1b[?1049l"));  // leaves the alternate screen
  const termios now = top.now();
  CHECK(now.c_lflag == top.before.c_lflag);
  CHECK(now.c_cc[VSUSP] == top.before.c_cc[VSUSP]);
}

}  // namespace

TEST_CASE("top draws on a terminal until q") {
  PooldProcess poold(kDevice);
  RawClient program(poold.endpoint());
  hello::Hello hello = test_hello();
  hello.program = "train.py";
  program.open(hello);
  OnTerminal top(poold);
  CHECK(top.await("train.py"));
  CHECK(top.await("CALLS/s"));
  CHECK((top.now().c_lflag & (ICANON | ECHO)) == 0);
  top.seen.clear();
  top.resize(60);
  CHECK(top.await("train.py"));
  top.seen = "\x1b[?1049h";
  top.press("xyz");
  top.press("q");
  CHECK(top.wait() == 0);
  check_restored(top);
}

TEST_CASE("top restores the terminal after SIGINT or SIGTERM or the end of poold") {
  PooldProcess poold(kDevice);
  {
    OnTerminal top(poold);
    CHECK(top.await("no sessions"));
    top.press("\x03");
    CHECK(top.wait() == 0);
    check_restored(top);
  }
  OnTerminal top(poold);
  CHECK(top.await("no sessions"));
  CHECK(poold.stop() == 0);
  CHECK(top.wait() == 3);
  check_restored(top);
  CHECK(has(top.seen.substr(top.seen.find("\x1b[?1049l")), "pool-admin: "));
}

TEST_CASE("top prints snapshots where there is no terminal") {
  PooldProcess poold(kDevice);
  const std::vector<std::string> top{
      program_path("pool-admin"), "--poold", "unix:" + poold.admin_socket(), "top", "--interval", "0.1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), top.begin(), top.end());
    return more;
  };
  const Finished text = run_to_end(with({"--count", "3"}));
  CHECK(text.status == 0);
  CHECK(occurrences(text.output, "no sessions\n") == 3);
  CHECK_FALSE(has(text.output, "\x1b"));
  const Finished once = run_to_end(with({"--count", "1"}));
  CHECK(once.status == 0);
  CHECK(occurrences(once.output, "no sessions\n") == 1);
  CHECK_FALSE(has(once.output, " - "));  // rates are known, from two snapshots
  const Finished json = run_to_end(with({"--count", "2", "--json"}));
  CHECK(json.status == 0);
  std::istringstream lines(json.output);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto snapshot = nlohmann::json::parse(line);
    CHECK(snapshot["poold"]["ready"] == true);
    CHECK(snapshot["gpus"].size() == 2);
    CHECK(snapshot["tenants"][0]["name"] == "default");
  }
  CHECK(count == 2);
  Process endless(top, {});
  CHECK(endless.await_output("no sessions"));
  endless.signal(SIGTERM);
  CHECK(endless.wait() == 0);
}
