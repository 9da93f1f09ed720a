// A quick run of gpupool-bench, for tests that look at what it reports.
#pragma once
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {

struct QuickRun {
  std::string json, output;
};

// Fails the test if the run does.
inline QuickRun quick_run(std::vector<std::string> options, std::chrono::milliseconds patience) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "figures.json";
  std::vector<std::string> words{program_path("gpupool-bench"), "--quick", "--json", file};
  words.insert(words.end(), options.begin(), options.end());
  Process bench(words, {});
  const int status = bench.wait(patience);
  bench.await_end_of_output();
  INFO(bench.output());
  REQUIRE(status == 0);
  std::stringstream json;
  json << std::ifstream(file).rdbuf();
  return {json.str(), bench.output()};
}

}  // namespace gpupool::testing
