// driver_parity prints the same results on softgpu directly and through poold, but for the differences listed here.
#include <cstdlib>
#include <sstream>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"

using namespace gpupool::testing;

namespace {

struct Allowed {
  const char* line;  // how a line begins, in either run
  const char* reason;
};
constexpr Allowed kAllowed[] = {
    // What the device has but the client does not forward is not promised to the program.
    {"attribute 86 ->", "the host's and the device's atomics are on two machines"},
    {"attribute 89 ->", "host and device do not use managed memory at the same time"},
    {"attribute 91 ->", "memory that the program registers has no address for kernels"},
    {"attribute 101 ->", "host and device do not use managed memory at the same time"},
    {"attribute 50 ->", "the PCI domain is the softgpu instance's, and the two sides use two instances"},
    {"attribute 119 ->", "only the pool shares memory pools between processes"},
    {"attribute 128 ->", "only the pool has fabric handles"},
    {"cuFuncIsLoaded(&state, fill) =", "in the pool a kernel is loaded when it is looked up"},
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  // What the device says of code it refuses; through poold the client says it, the device in another process.
  const auto is_said = [](const std::string& line) {
    return line.rfind("softgpu: ", 0) == 0 || line.rfind("gpupool: the device refused a module: ", 0) == 0;
  };
  for (std::string line; std::getline(stream, line);) {
    if (!is_said(line)) lines.push_back(line);
  }
  return lines;
}

bool is_allowed(const std::string& line) {
  for (const Allowed& allowed : kAllowed) {
    if (line.rfind(allowed.line, 0) == 0) return true;
  }
  return false;
}

void expect_parity(Pool& pool, const std::vector<std::string>& program, const Environment& pooled_only) {
  const Finished direct = run_patiently(program, pool.directly());
  const Finished pooled = run_patiently(program, pool.through(pooled_only));
  INFO(program.back());
  CHECK(direct.status == 0);
  CHECK(pooled.status == 0);
  const auto expected = lines_of(direct.output), seen = lines_of(pooled.output);
  for (size_t i = 0; i < std::max(expected.size(), seen.size()); ++i) {
    const std::string want = i < expected.size() ? expected[i] : "(nothing)";
    const std::string have = i < seen.size() ? seen[i] : "(nothing)";
    if (want != have && !(is_allowed(want) && is_allowed(have))) CHECK("directly: " + want == "through poold: " + have);
  }
}

}  // namespace

TEST_CASE("driver calls give the same directly and through poold") {
  Pool pool;
  for (const char* part : {
#define PART(function, context) #function,
#include "tests/parity/parts.def"
#undef PART
       }) {
    // Every call is waited for, so that its own result comes back from it and not from a later one.
    expect_parity(pool, {DRIVER_PARITY, part}, {{"GPUPOOL_SYNC", "1"}});
  }
}

TEST_CASE("runtime calls give the same directly and through poold") {
  const char* const program = std::getenv("RUNTIME_PARITY");
  if (program == nullptr) return;  // ctest names one (CMakeLists.txt)
  Pool pool;
  expect_parity(pool, {program}, {});
  expect_parity(pool, {program}, {{"GPUPOOL_SYNC", "1"}});
}

TEST_CASE("textures give the same directly and through poold") {
  const char* const program = std::getenv("TEXTURES_PARITY");
  if (program == nullptr) return;
  Pool pool;
  for (const std::vector<std::string>& words : {std::vector<std::string>{program}, {program, "outside"}, {program, "wild"}}) {
    expect_parity(pool, words, {});
  }
}
