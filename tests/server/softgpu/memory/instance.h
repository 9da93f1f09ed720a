// A softgpu instance for one test, so that concurrent tests do not share devices. Sets SOFTGPU_INSTANCE for
// the process.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

class Instance {
 public:
  Instance() : name_("test-" + std::to_string(getpid()) + "-" + std::to_string(count_++)) {
    setenv("SOFTGPU_INSTANCE", name_.c_str(), 1);
  }
  ~Instance() {
    unlink(path(0).c_str());
    unsetenv("SOFTGPU_INSTANCE");
  }
  std::string path(int ordinal) const {
    return "/dev/shm/softgpu-" + std::to_string(geteuid()) + "-" + name_ + "-" + std::to_string(ordinal);
  }
  bool file_exists(int ordinal = 0) const {
    struct stat info;
    return stat(path(ordinal).c_str(), &info) == 0;
  }

 private:
  static inline int count_ = 0;
  std::string name_;
};
