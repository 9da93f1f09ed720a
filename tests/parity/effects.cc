#include "tests/parity/effects.h"

#include <fstream>
#include <iterator>
#include <map>

#include "protocol/driver/version_map.h"
#include "tests/client/coverage/page.h"
#include "tests/support/catch.h"

namespace gpupool::testing {
namespace {

struct Untested {
  const char* function;
  const char* file;
  const char* reason;
};
constexpr Untested kUntested[] = {
#define UNTESTED(function, file, reason) {#function, file, reason},
#include "tests/parity/untested.def"
#undef UNTESTED
};
constexpr size_t kMostUntested = 14;  // number of entries; may only decrease

bool names(const char* file, const char* function) {
  std::ifstream in(std::string(SOURCE_FOLDER) + "/" + file);
  return std::string(std::istreambuf_iterator<char>(in), {}).find(function) != std::string::npos;
}

}  // namespace

void add_outcomes(const std::vector<std::string>& lines, Outcomes& outcomes) {
  for (const std::string& line : lines) {
    const size_t result = line.rfind(") -> CUDA_");
    if (!line.starts_with("cu") || result == std::string::npos) continue;
    auto& functions = line.ends_with(" -> CUDA_SUCCESS") ? outcomes.succeeded : outcomes.failed;
    functions.emplace(cuda::base_name(line.substr(0, line.find('('))));
  }
}

void expect_effects(const Outcomes& outcomes) {
  std::map<std::string, const Untested*> untested;
  for (const Untested& known : kUntested) untested[known.function] = &known;
  CHECK(untested.size() <= kMostUntested);
  for (const DeclaredFunction& function : declared_functions()) {
    const bool fails = function.state == State::refused || function.state == State::unsupported;
    const auto listed = untested.find(function.name);
    INFO(function.name);
    if (fails) {
      CHECK(outcomes.failed.contains(function.name));  // call it in a part of tests/parity
      CHECK(!outcomes.succeeded.contains(function.name));
      CHECK(listed == untested.end());
      continue;
    }
    if (listed == untested.end()) {
      CHECK(outcomes.succeeded.contains(function.name));  // call it with SHOW or SHOW_VALUE in a part of
                                                          // tests/parity
      continue;
    }
    CHECK(!outcomes.succeeded.contains(function.name));  // remove it from untested.def
    CHECK(names(listed->second->file, listed->second->function));
    untested.erase(listed);
  }
  for (const auto& [name, known] : untested) CHECK("untested.def names what there is not: " == name);
}

}  // namespace gpupool::testing
