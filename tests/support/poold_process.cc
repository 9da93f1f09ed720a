#include "tests/support/poold_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <stdexcept>

namespace gpupool::testing {

// Beside this program (an installed bundle), or where the build puts programs.
std::string program_path(const std::string& name) {
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  return std::filesystem::exists(beside) ? beside.string() : std::string(GPUPOOL_PROGRAMS) + "/" + name;
}

PooldProcess::PooldProcess(const std::string& device, const std::vector<std::string>& more_options,
                           const Environment& environment) {
  std::vector<std::string> words{program_path("poold"), "--device", device, "--port-file", port_file()};
  if (std::find(more_options.begin(), more_options.end(), "--listen") == more_options.end()) {
    words.insert(words.end(), {"--listen", "tcp://127.0.0.1:0"});
  }
  words.insert(words.end(), more_options.begin(), more_options.end());
  const int watch = ::inotify_init1(IN_CLOEXEC);
  if (watch < 0 || ::inotify_add_watch(watch, folder_.path().c_str(), IN_MOVED_TO) < 0) {
    if (watch >= 0) ::close(watch);
    throw std::runtime_error("inotify does not work here");
  }
  try {
    process_ = std::make_unique<Process>(words, environment);
  } catch (...) {
    ::close(watch);
    throw;
  }
  pollfd polled[2] = {{watch, POLLIN, 0}, {process_->pidfd(), POLLIN, 0}};
  while (::poll(polled, 2, static_cast<int>(kPatience.count())) < 0 && errno == EINTR) {
  }
  ::close(watch);
  std::ifstream(port_file()) >> port_;
  if (port_ == 0) {
    process_->signal(SIGKILL);
    process_->wait();
    process_->await_end_of_output();
    throw std::runtime_error("poold did not come up: " + process_->output());
  }
}

bool PooldProcess::await_log(const std::string& text, size_t count) const {
  return process_->await_output([&](const std::string& log) { return occurrences(log, text) >= count; });
}

int PooldProcess::stop() {
  process_->signal(SIGTERM);
  return process_->wait();
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace gpupool::testing
