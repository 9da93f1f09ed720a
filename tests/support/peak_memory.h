// The most memory that a process has had so far, for tests that its peers cannot fill it.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace gpupool::testing {

// In bytes; 0 if the kernel does not report it.
inline uint64_t peak_memory(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace gpupool::testing
