// Programs whose output is the same each time, for tests that disturb them at random moments, and what they
// print directly on the device. Included by the tests of this folder. Not thread-safe.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/e2e/pool.h"

namespace gpupool::testing {

// Arguments of driver_app.
inline const std::vector<std::vector<std::string>> kSteadyPrograms{
    {"counting", "20", "4000"},
    {"copies"},
    {"fills"},
    {"boxes"},
    {"symbols"},
    {"events_order_streams"},
    {"host_functions_run_in_order"},
    {"launches_behind_a_large_copy"},
    {"async_readback"},
    {"pinned_memory_both_ways"},
    {"threads_with_streams"},
    {"stream_memory_operations"},
    {"kernel_prints_in_order"},
    {"captured_graph"},
    {"graph_with_host_memory"},
    {"graph_by_hand"},
    {"virtual_memory"},
    {"managed_memory"},
    {"managed_copies"},
    {"registered_memory"},
    {"mapped_pinned_memory"},
    {"stream_ordered_memory"},
    {"two_contexts"},
    {"counting", "5", "2000000"},
    {"illegal_address"},
    {"exit_without_cleanup"},
};

// The last bytes of poold's log, for messages.
inline std::string end_of_log(Pool& pool) {
  constexpr size_t kShown = 3000;
  const std::string log = pool.poold().log();
  return log.substr(log.size() - std::min(log.size(), kShown));
}

// A number of the environment, by which a test runs longer or repeats a failed run.
inline unsigned number_in(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : otherwise;
}

// True if PROGRAM in the environment is another one.
inline bool is_left_out(const std::vector<std::string>& program) {
  const char* const only = std::getenv("PROGRAM");
  return only && program.front() != only;
}

inline std::vector<std::string> words_of(const std::vector<std::string>& program) {
  std::vector<std::string> words{driver_app()};
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

// Runs the program directly on the device, once, and returns its output and status.
inline const Finished& directly(const Pool& pool, const std::vector<std::string>& program) {
  static std::map<std::vector<std::string>, Finished> finished;
  const auto found = finished.find(program);
  if (found != finished.end()) return found->second;
  return finished[program] = run_patiently(words_of(program), pool.directly());
}

}  // namespace gpupool::testing
