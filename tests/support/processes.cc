#include "tests/support/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

extern char** environ;

namespace gpupool::testing {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& doing, int error) {
  throw std::system_error(error, std::generic_category(), doing);
}

int open_pidfd(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

bool readable_within(int descriptor, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd polled{descriptor, POLLIN, 0};
    const int count = ::poll(&polled, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder(const fs::path& parent) {
  std::string name = (parent / "gpupool-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail("mkdtemp", errno);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  const fs::path file = path_ / name;
  std::ofstream(file, std::ios::binary) << content;
  return file.string();
}

std::string TemporaryFolder::write_secret(const std::string& name, const std::string& content) const {
  const std::string file = write(name, "");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  return write(name, content);
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Process::Process(const std::vector<std::string>& words, const Environment& environment) {
  Environment merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    merged[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  for (const auto& [name, value] : environment) merged[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : merged) lines.push_back(name + "=" + value);
  std::vector<char*> environment_pointers;
  for (std::string& line : lines) environment_pointers.push_back(line.data());
  environment_pointers.push_back(nullptr);
  std::vector<char*> word_pointers;
  for (const std::string& word : words) word_pointers.push_back(const_cast<char*>(word.c_str()));
  word_pointers.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe", errno);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  const int error = ::posix_spawnp(&pid_, words.front().c_str(), &actions, nullptr, word_pointers.data(),
                                   environment_pointers.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  output_pipe_ = ends[0];
  ::fcntl(output_pipe_, F_SETFL, O_NONBLOCK);
  if (error != 0) {
    ::close(output_pipe_);
    fail("starting " + words.front(), error);
  }
  pidfd_ = open_pidfd(pid_);
  reader_ = std::thread([this] { collect(); });
}

Process::~Process() {
  if (!reaped_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  reader_.join();  // ends when all processes with the output open have ended
  ::close(pidfd_);
  ::close(output_pipe_);
}

void Process::collect() {
  do {
    pollfd pipe{output_pipe_, POLLIN, 0};
    ::poll(&pipe, 1, -1);
  } while (take_output());
}

bool Process::take_output() {
  char buffer[16 * 1024];
  const std::lock_guard lock(mutex_);
  while (!output_ended_) {
    const ssize_t received = ::read(output_pipe_, buffer, sizeof buffer);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) break;
    if (received > 0) output_.append(buffer, static_cast<size_t>(received));
    output_ended_ = received <= 0;
  }
  changed_.notify_all();
  return !output_ended_;
}

void Process::signal(int number) const {
  if (!reaped_) ::kill(pid_, number);
}

int Process::wait(std::chrono::milliseconds patience) {
  if (reaped_) return status_;
  if (!readable_within(pidfd_, patience)) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  reaped_ = true;
  take_output();
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return status_;
}

std::string Process::output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

bool Process::await_output(const std::function<bool(const std::string&)>& enough,
                           std::chrono::milliseconds patience) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return output_ended_ || enough(output_); });
  return enough(output_);
}

bool Process::await_output(const std::string& text, std::chrono::milliseconds patience) const {
  return await_output([&](const std::string& output) { return output.find(text) != std::string::npos; },
                      patience);
}

bool Process::await_end_of_output(std::chrono::milliseconds patience) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return output_ended_; });
}

Finished run_to_end(const std::vector<std::string>& words, const Environment& environment) {
  Process process(words, environment);
  Finished finished;
  finished.status = process.wait();
  process.await_end_of_output();
  finished.output = process.output();
  return finished;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream list(task.path() / "children");
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

bool can_count_descriptors(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  struct stat status {};
  return ::access(folder.c_str(), R_OK) == 0 || (::stat(folder.c_str(), &status) == 0 && status.st_size > 0);
}

size_t resident_bytes(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/status";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  throw std::runtime_error(path + " has no VmRSS");
}

size_t descriptors_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  struct stat status {};
  if (::stat(folder.c_str(), &status) == 0 && status.st_size > 0)
    return static_cast<size_t>(status.st_size);  // since Linux 6.2
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

bool await_gone(pid_t pid, std::chrono::milliseconds patience) {
  const int pidfd = open_pidfd(pid);
  if (pidfd < 0) return true;
  const bool gone = readable_within(pidfd, patience);
  ::close(pidfd);
  return gone;
}

bool is_zombie(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos || end_of_name + 2 >= line.size() || line[end_of_name + 2] != 'Z') {
    return false;
  }
  // The state is the first thread's. While others still exit, the parent cannot reap the process.
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid) + "/task", error);
  return !error && std::distance(begin(threads), end(threads)) == 1;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace gpupool::testing
