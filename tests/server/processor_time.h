// CPU time of a process's threads, for tests of which thread does the work.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace gpupool::testing {

// In nanoseconds; 0 if the kernel does not tell.
struct ProcessorTime {
  uint64_t main = 0, all = 0;
};

inline ProcessorTime processor_time(pid_t pid) {
  ProcessorTime time;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream file(task.path() / "schedstat");
    uint64_t ran = 0;
    file >> ran;
    time.all += ran;
    if (task.path().filename() == std::to_string(pid)) time.main = ran;
  }
  return time;
}

}  // namespace gpupool::testing
