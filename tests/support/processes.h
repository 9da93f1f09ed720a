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

constexpr std::chrono::milliseconds kPatience{30'000};  // more than anything takes, even under sanitizers

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  // The same for keys and tokens: nobody else can read it.
  std::string write_secret(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

using Environment = std::map<std::string, std::string>;  // added to, or put over, this process's

// One child with its stdout and stderr collected as they come.
class Process {
 public:
  Process(const std::vector<std::string>& words, const Environment& environment);
  ~Process();  // kills it if it is still there
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_; }
  void signal(int number) const;
  // Exit status, or 128 + signal; -1 when it did not end in time. output() has then all that it wrote.
  int wait(std::chrono::milliseconds patience = kPatience);
  std::string output() const;
  // Waits until the output so far satisfies `enough`; false when it never did.
  bool await_output(const std::function<bool(const std::string&)>& enough,
                    std::chrono::milliseconds patience = kPatience) const;
  bool await_output(const std::string& text, std::chrono::milliseconds patience = kPatience) const;
  // Waits until everyone who could write to the output (children of the child too) is gone.
  bool await_end_of_output(std::chrono::milliseconds patience = kPatience) const;

 private:
  void collect();
  bool take_output();  // what there is; false: nobody is left to write

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
// False before Linux 6.2, unless this is root, for a process that hides its memory, as poold and its workers do: then descriptors_of() throws.
bool can_count_descriptors(pid_t pid);
// True when the process is gone, or waits to be reaped by someone else, within the time.
bool await_gone(pid_t pid, std::chrono::milliseconds patience = kPatience);
bool is_zombie(pid_t pid);

// For conditions that nobody announces: asks again and again, and gives up after kPatience.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds patience = kPatience);

}  // namespace gpupool::testing
