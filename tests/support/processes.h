// Child processes, temporary folders and /proc for tests. Failures of the helpers themselves are exceptions.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gpupool::testing {

constexpr std::chrono::milliseconds kPatience{30'000};  // timeout that suffices even under sanitizers

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  // Writes a file with mode 0600, for keys and tokens.
  std::string write_secret(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

// Returns a file's bytes, none if it cannot be read.
std::string content_of(const std::filesystem::path& path);

using Environment = std::map<std::string, std::string>;  // overrides of this process's environment

// A child process whose stdout and stderr are collected by a thread.
class Process {
 public:
  Process(const std::vector<std::string>& words, const Environment& environment);
  ~Process();  // kills it if it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_; }
  void signal(int number) const;
  // Returns the exit status, or 128 + signal number; -1 on timeout. Afterwards output() has everything that
  // the process itself wrote.
  int wait(std::chrono::milliseconds patience = kPatience);
  std::string output() const;
  // Waits until the output satisfies `enough`. Returns false at the end of the output or on timeout.
  bool await_output(const std::function<bool(const std::string&)>& enough,
                    std::chrono::milliseconds patience = kPatience) const;
  bool await_output(const std::string& text, std::chrono::milliseconds patience = kPatience) const;
  // Waits until all processes that have the output open, such as grandchildren, have ended.
  bool await_end_of_output(std::chrono::milliseconds patience = kPatience) const;

 private:
  void collect();
  bool take_output();  // reads what is available; false: end of file

  pid_t pid_ = -1;
  int pidfd_ = -1;
  int output_pipe_ = -1;
  int status_ = -1;
  bool reaped_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string output_;
  bool output_ended_ = false;
  std::thread reader_;
};

struct Finished {
  int status = -1;
  std::string output;
};
Finished run_to_end(const std::vector<std::string>& words, const Environment& environment = {});

std::vector<pid_t> children_of(pid_t pid);
size_t resident_bytes(pid_t pid);
size_t descriptors_of(pid_t pid);
// Returns false if descriptors_of() would throw: before Linux 6.2, without root, for a non-dumpable process,
// which poold and its workers are.
bool can_count_descriptors(pid_t pid);
// Waits until the process has ended or is a zombie. Returns false on timeout.
bool await_gone(pid_t pid, std::chrono::milliseconds patience = kPatience);
bool is_zombie(pid_t pid);

// Polls the condition every 2 ms. Returns false on timeout.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds patience = kPatience);

}  // namespace gpupool::testing
