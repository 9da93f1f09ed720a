#include "tests/bench/run_program.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace gpupool::bench {

using testing::Environment;
using testing::Process;

std::filesystem::path prefix() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return std::filesystem::path(std::string(path, length > 0 ? length : 0)).parent_path().parent_path();
}

std::string program(const char* name) {
  return prefix() / "bin" / name;
}

void run_program(const std::vector<std::string>& words, const Environment& environment, Samples& samples) {
  Process child(words, environment);
  const int status = child.wait(std::chrono::minutes(10));
  child.await_end_of_output();
  if (status != 0) {
    throw std::runtime_error(words[0] + " failed (status " + std::to_string(status) + "):\n" +
                             child.output());
  }
  std::istringstream lines(child.output());
  std::string name;
  double value = 0;
  while (lines >> name >> value) samples.add(name, value);
}

void run_with_and_without_timeline(const std::vector<std::string>& words, Environment environment,
                                   Samples& samples) {
  run_program(words, environment, samples);
  const testing::TemporaryFolder folder;
  environment["GPUPOOL_TIMELINE"] = folder.path() / "timeline.json";
  Samples recorded;
  run_program(words, environment, recorded);
  samples.add("step_timeline_us", recorded.median("step_us"));
}

Environment device_environment() {
  return {{"SOFTGPU_THREADS", std::to_string(std::max(1u, std::thread::hardware_concurrency() / 2))}};
}

}  // namespace gpupool::bench
