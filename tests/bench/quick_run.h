// Runs gpupool-bench --quick, for tests of its suites.
#pragma once
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {

struct QuickRun {
  std::string json, output;

  // Returns a number of the first figure with this name and transport. Fails the test if there is none.
  double value(const std::string& name, const std::string& transport = "tcp",
               const std::string& key = "value") const {
    const std::string begin = "{\"name\": \"" + name + "\", \"transport\": \"" + transport + "\"";
    INFO(begin);
    const size_t at = json.find(begin);
    REQUIRE(at != std::string::npos);
    const size_t place = json.find("\"" + key + "\": ", at);
    REQUIRE(place < json.find('\n', at));
    return std::strtod(json.c_str() + place + key.size() + 4, nullptr);
  }
};

// Fails the test if the run fails.
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
