#include "tests/support/poold_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "common/sanitizers.h"

namespace gpupool::testing {

std::string moved_path(const std::string& path, const std::string& otherwise) {
  const auto moved = std::filesystem::read_symlink("/proc/self/exe").parent_path() / path;
  return std::filesystem::exists(moved) ? moved.lexically_normal().string() : otherwise;
}

// Looks next to this program (an installed bundle), in bin/ of its build folder, and in the folder configured
// at build time.
std::string program_path(const std::string& name) {
  return moved_path(name, moved_path("../bin/" + name, std::string(GPUPOOL_PROGRAMS) + "/" + name));
}

namespace {

std::string complete_lines(const std::string& text) {
  return text.substr(0, text.rfind('\n') + 1);
}

// Redirects the sanitizers' reports to files in `folder`, because tests do not read poold's stderr.
Environment with_reports(const std::filesystem::path& folder, Environment environment) {
  if (!kSanitized) return environment;
  for (const char* const name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    std::string& options = environment[name];
    if (const char* const inherited = std::getenv(name); options.empty() && inherited) options = inherited;
    options += (options.empty() ? "" : ":") + std::string("log_path=") + (folder / "sanitizer").string();
  }
  return environment;
}

}  // namespace

PooldProcess::PooldProcess(const std::string& device, const std::vector<std::string>& more_options,
                           const Environment& environment, const std::vector<std::string>& launcher) {
  std::vector<std::string> words = launcher;
  words.insert(words.end(), {program_path("poold"), "--device", device, "--port-file", port_file()});
  const auto given = [&](const char* option) {
    return std::find(more_options.begin(), more_options.end(), option) != more_options.end();
  };
  if (!given("--listen")) words.insert(words.end(), {"--listen", "tcp://127.0.0.1:0"});
  if (!given("--admin-socket")) words.insert(words.end(), {"--admin-socket", admin_socket()});
  words.insert(words.end(), more_options.begin(), more_options.end());
  for (size_t i = 0; i + 1 < more_options.size(); ++i)
    if (more_options[i] == "--idle-workers") idle_workers_ = std::stoul(more_options[i + 1]);
  const int watch = ::inotify_init1(IN_CLOEXEC);
  if (watch < 0 || ::inotify_add_watch(watch, folder_.path().c_str(), IN_MOVED_TO) < 0) {
    if (watch >= 0) ::close(watch);
    throw std::runtime_error("inotify is not available");
  }
  try {
    process_ = std::make_unique<Process>(words, with_reports(folder_.path(), environment));
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
    throw std::runtime_error("poold did not start: " + process_->output());
  }
}

PooldProcess::~PooldProcess() {
  process_.reset();
  bool clean = true;
  for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
    if (file.path().filename().string().rfind("sanitizer.", 0) != 0 || file.file_size() == 0) continue;
    std::cerr << std::ifstream(file.path()).rdbuf() << std::endl;
    clean = false;
  }
  if (!clean) std::_Exit(66);  // abort() would make the sanitizer print another report
}

// poold has other, short-lived children as well.
std::vector<pid_t> PooldProcess::workers() const {
  std::vector<pid_t> workers = children_of(pid());
  std::erase_if(workers, [](pid_t child) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(child) + "/comm"), name);
    return name != "poold-worker";
  });
  return workers;
}

std::string PooldProcess::log() const {
  return complete_lines(process_->output());
}

bool PooldProcess::await_log(const std::string& text, size_t count) const {
  return process_->await_output(
      [&](const std::string& log) { return occurrences(complete_lines(log), text) >= count; });
}

size_t PooldProcess::descriptors() const {
  if (can_count_descriptors(pid())) return descriptors_of(pid());
  std::puts("SKIPPED: counting poold's descriptors requires root before Linux 6.2");
  return 0;
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
