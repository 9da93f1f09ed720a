// driver_parity and two runtime programs print the same results directly on a device and through poold,
// except for the differences listed here. The device is softgpu or that of GPUPOOL_TEST_DEVICE
// (tests/e2e/pool.h).
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "tests/e2e/pool.h"
#include "tests/parity/differences.h"
#include "tests/parity/effects.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace gpupool::testing;

namespace {

std::string driver_parity() {
  return program_path("driver_parity");
}

struct Allowed {
  const char* line;  // beginning of a line in either run
  bool on_softgpu;   // false: allowed only on other devices than softgpu
};
// The rows of allowed.def, and functions that are not supported.
const std::vector<Allowed>& allowed_lines() {
  static const std::vector<Allowed> all = [] {
    std::vector<Allowed> made;
#define ALLOWED(reason, ...) \
  for (const char* const line : {__VA_ARGS__}) made.push_back({line, true});
#define ALLOWED_ON_NVIDIA(reason, ...) \
  for (const char* const line : {__VA_ARGS__}) made.push_back({line, false});
#include "tests/parity/allowed.def"
#undef ALLOWED
#undef ALLOWED_ON_NVIDIA
#define CUDA_UNSUPPORTED(function, reason) made.push_back({#function "(nothing) ->", false});
#include "protocol/driver/unsupported.def"
#undef CUDA_UNSUPPORTED
    return made;
  }();
  return all;
}

// Parts that NVIDIA's driver cannot be compared in.
struct LeftOut {
  const char* part;
  const char* reason;
};
constexpr LeftOut kLeftOutOnNvidia[] = {
    {"first_versions", "NVIDIA's driver needs a context of the first version of cuCtxCreate for these calls"},
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  // Skips the device's messages about rejected code (through poold, the client prints them, and the device
  // runs in another process), and the client's messages about unsupported functions.
  const auto is_said = [](const std::string& line) {
    return line.rfind("softgpu: ", 0) == 0 || line.rfind("gpupool: cannot load a module: ", 0) == 0 ||
           (line.rfind("gpupool: cu", 0) == 0 && line.find(" is not supported: ") != std::string::npos);
  };
  for (std::string line; std::getline(stream, line);) {
    if (!is_said(line)) lines.push_back(line);
  }
  return lines;
}

bool is_allowed(const std::string& line) {
  for (const Allowed& allowed : allowed_lines()) {
    if ((allowed.on_softgpu || !on_softgpu()) && line.rfind(allowed.line, 0) == 0) return true;
  }
  return false;
}

// Writes a run's output to the folder GPUPOOL_TEST_OUTPUTS, if that is set.
void keep_output(const std::vector<std::string>& program, const Environment& environment,
                 const std::string& output) {
  const char* const folder = std::getenv("GPUPOOL_TEST_OUTPUTS");
  if (folder == nullptr) return;
  std::string name = std::filesystem::path(program.front()).filename();
  if (program.size() > 1) name += "-" + program[1] + (program.size() > 2 ? "-and-others" : "");
  name += environment.contains("GPUPOOL") ? "-pooled" : "-directly";
  if (environment.contains("PARITY_QUEUED")) name += "-queued";
  std::ofstream(std::filesystem::path(folder) / name) << output;
}

// Runs a program, which must succeed, and returns its lines.
std::vector<std::string> run(const std::vector<std::string>& program, Environment environment) {
  if (!on_softgpu()) environment.emplace("PARITY_GUARDED", "1");
  const Finished finished = run_patiently(program, environment);
  CHECK(finished.status == 0);
  keep_output(program, environment, finished.output);
  return lines_of(finished.output);
}

// True if both lines have results of the same call: `result` directly, and an error through poold.
bool fails_otherwise(const Difference& difference, std::string_view result) {
  const std::string& want = difference.expected;
  if (!want.ends_with(result)) return false;
  return difference.seen.starts_with(want.substr(0, want.size() - result.size()) + " -> CUDA_ERROR_");
}

bool is_allowed_difference(const Difference& difference) {
  static constexpr std::string_view kCrashes = " -> crashes";
  const std::string& want = difference.expected;
  const std::string& have = difference.seen;
  if (on_softgpu()) return is_allowed(want) && is_allowed(have);
  if ((want.empty() || is_allowed(want)) && (have.empty() || is_allowed(have))) return true;
  // NVIDIA's driver keeps destroyed contexts apart from those that never existed.
  if (fails_otherwise(difference, " -> CUDA_ERROR_CONTEXT_IS_DESTROYED")) return true;
  return want.ends_with(kCrashes) &&
         (have.empty() || have.starts_with(want.substr(0, want.size() - kCrashes.size())));
}

void expect_same(const std::vector<std::string>& expected, const std::vector<std::string>& seen) {
  for (const Difference& difference : differences(expected, seen)) {
    if (!is_allowed_difference(difference))
      CHECK("directly: " + difference.expected == "through poold: " + difference.seen);
  }
}

// Runs the program directly, and through poold with each of these environments.
void expect_parity(Pool& pool, const std::vector<std::string>& program,
                   const std::vector<Environment>& pooled_only = {Environment{}}) {
  INFO(program.back());
  const auto expected = run(program, pool.directly());
  for (const Environment& environment : pooled_only) {
    INFO(environment.size() << " variables");
    expect_same(expected, run(program, pool.through(environment)));
  }
}

struct Part {
  const char* name;
  int devices;
};
constexpr Part kParts[] = {
#define PART(function, context, devices) {#function, devices},
#include "tests/parity/parts.def"
#undef PART
};

// Parts that one run of driver_parity executes, each in a child process: it loads the driver's libraries once
// for all of them. On other devices than softgpu each part has a run of its own, because a call may hang.
using Parts = std::vector<const Part*>;
constexpr size_t kMostParts = 16;

// Runs the parts and returns the lines of each, by its name.
std::map<std::string, std::vector<std::string>> run_parts(const Parts& parts,
                                                          const Environment& environment) {
  std::vector<std::string> words{driver_parity()};
  for (const Part* const part : parts) words.emplace_back(part->name);
  constexpr std::string_view kBegin = "---- part ";
  std::map<std::string, std::vector<std::string>> lines;
  auto* of_part = &lines[parts.front()->name];
  for (const std::string& line : run(words, environment)) {
    if (parts.size() > 1 && line.starts_with(kBegin))
      of_part = &lines[line.substr(kBegin.size())];
    else
      of_part->push_back(line);
  }
  return lines;
}

// Compares the parts with GPUPOOL_SYNC, where each call returns its own result.
void compare_waiting(const Parts& parts, Pool& pool, Outcomes& outcomes) {
  auto expected = run_parts(parts, pool.directly());
  auto seen = run_parts(parts, pool.through({{"GPUPOOL_SYNC", "1"}}));
  for (const Part* const part : parts) {
    INFO(part->name << ", each call waited for");
    expect_same(expected[part->name], seen[part->name]);
    add_outcomes(seen[part->name], outcomes);
  }
}

// Compares the parts with queued calls, the default.
void compare_queued(const Parts& parts, Pool& pool) {
  const Environment queued{{"PARITY_QUEUED", "1"}};
  auto expected = run_parts(parts, pool.directly(queued)), seen = run_parts(parts, pool.through(queued));
  for (const Part* const part : parts) {
    INFO(part->name << ", calls queued");
    expect_same(expected[part->name], seen[part->name]);
  }
}

// GPUPOOL_TEST_PARTS limits the test to these parts, for machines that are too slow to run all of them at
// once, and GPUPOOL_TEST_WAITING_PARTS limits compare_waiting() further.
bool is_named(const char* variable, const Part& part) {
  const char* const only = std::getenv(variable);
  return !only ||
         (' ' + std::string(only) + ' ').find(std::string(" ") + part.name + ' ') != std::string::npos;
}
bool is_chosen(const Part& part) {
  return is_named("GPUPOOL_TEST_PARTS", part);
}

bool is_left_out(const Part& part) {
  if (on_softgpu()) return false;
  for (const LeftOut& one : kLeftOutOnNvidia) {
    if (part.name != std::string_view(one.part)) continue;
    report_skip(std::string(part.name) + ": " + one.reason);
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE(
    "driver calls give the same directly and through poold and all functions that work are among them") {
  Outcomes outcomes;
  Pool one, two(Environment{{"SOFTGPU_DEVICES", "2"}});
  std::map<int, Parts> waiting, queued;  // by the number of devices
  const auto compare = [&](int devices, size_t at_least) {
    Pool& pool = devices == 1 ? one : two;
    if (waiting[devices].size() >= at_least)
      compare_waiting(std::exchange(waiting[devices], {}), pool, outcomes);
    if (queued[devices].size() >= at_least) compare_queued(std::exchange(queued[devices], {}), pool);
  };
  for (const Part& part : kParts) {
    if (!is_chosen(part) || is_left_out(part)) continue;
    if (!on_softgpu() && count_devices(part.devices == 1 ? one : two) < part.devices) {
      report_skip(std::string(part.name) + " needs " + std::to_string(part.devices) + " devices");
      continue;
    }
    if (is_named("GPUPOOL_TEST_WAITING_PARTS", part)) waiting[part.devices].push_back(&part);
    queued[part.devices].push_back(&part);
    compare(part.devices, on_softgpu() ? kMostParts : 1);
  }
  for (const int devices : {1, 2}) compare(devices, 1);
  if (on_softgpu() && !std::getenv("GPUPOOL_TEST_PARTS")) expect_effects(outcomes);
}

TEST_CASE("runtime calls give the same directly and through poold") {
  const char* const program = std::getenv("RUNTIME_PARITY");
  if (program == nullptr) return report_skip("RUNTIME_PARITY names no program, as ctest does");
  Pool pool;
  const Environment waiting{{"GPUPOOL_SYNC", "1"}};
  expect_parity(pool, {program}, {Environment{}, waiting});
}

TEST_CASE("textures give the same directly and through poold") {
  const char* const program = std::getenv("TEXTURES_PARITY");
  if (program == nullptr) return report_skip("TEXTURES_PARITY names no program, as ctest does");
  Pool pool;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{program}, {program, "outside"}, {program, "wild"}}) {
    expect_parity(pool, words);
  }
}
