// Tests the statistics of GPUPOOL_TRACE and GPUPOOL_STATS, which a process prints when it exits: each case is
// a child process.
#include "client/process/trace.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "client/session/call.h"
#include "tests/client/child.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"

using namespace gpupool;
using namespace gpupool::client;
using namespace gpupool::client::test;
using Catch::Matchers::ContainsSubstring;
using gpupool::testing::Environment;
using gpupool::testing::TemporaryFolder;
using std::chrono::milliseconds;

namespace {

constexpr uint16_t kLaunch = static_cast<uint16_t>(wire::Command::launch);
constexpr uint16_t kCopy = static_cast<uint16_t>(wire::Command::copy_to_device);
constexpr uint16_t kRow = rows::cuStreamDestroy_v2::kId;

// Runs a process that counts two launches, a synchronous copy and a call of the call table; returns what it
// prints on stderr.
std::string printed(Environment environment) {
  return in_child(
             environment,
             [] {
               trace::start();
               if (!trace::on()) return std::string();
               trace::count_call(kLaunch, 100, milliseconds(1));
               trace::count_call(kLaunch, 100, milliseconds(1));
               trace::count_call(kCopy, 2'000'000, milliseconds(3));
               trace::count_round_trip(kCopy, 32, milliseconds(250));
               trace::count_sent(kCopy, 1'000'000);
               trace::count_received(kCopy, 68);
               trace::count_call(kRow, 10, milliseconds(0));
               return std::string();
             },
             true)
      .errors;
}

// The columns of the row with this name.
std::vector<std::string> row(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (found.size() > 1 && found[0] == "gpupool:" && found[1] == name)
      return {found.begin() + 2, found.end()};
  }
  return {};
}

}  // namespace

TEST_CASE("trace: prints nothing unless it was requested") {
  CHECK(printed({}).empty());
  CHECK(printed({{"GPUPOOL_TRACE", "0"}, {"GPUPOOL_STATS", "yes"}}).empty());
}

TEST_CASE("trace: the table has a row for each call, those that waited longest first, and a total") {
  const std::string text = printed({{"GPUPOOL_TRACE", "1"}});
  using Row = std::vector<std::string>;
  CHECK(row(text, "launch") == Row{"2", "0", "200", "0", "2.000", "0.000"});
  CHECK(row(text, "copy_to_device") == Row{"1", "1", "3000000", "100", "3.000", "250.000"});
  CHECK(row(text, "cuStreamDestroy_v2") == Row{"1", "0", "10", "0", "0.000", "0.000"});
  CHECK(row(text, "total") == Row{"4", "1", "3000210", "100", "5.000", "250.000"});
  CHECK(text.find("copy_to_device") < text.find("launch"));
  CHECK(text.find("launch") < text.find("cuStreamDestroy_v2"));
  CHECK(text.find("most frequent") == std::string::npos);
}

TEST_CASE("trace: the statistics name the most frequent calls and the longest waits") {
  const std::string text = printed({{"GPUPOOL_STATS", "1"}});
  CHECK_THAT(text,
             ContainsSubstring("4 calls sent, 1 of them waited for a reply, 250.0 ms in total; 3.000 MB "
                               "sent, 0.000 MB received"));
  CHECK_THAT(text, ContainsSubstring("most frequent: launch 2, "));
  CHECK_THAT(text, ContainsSubstring("longest waits: copy_to_device 250.0 ms (1)\n"));
  CHECK(row(text, "total").empty());
}

TEST_CASE("trace: GPUPOOL_TRACE_FILE names a file for each process") {
  const TemporaryFolder folder;
  const std::string text =
      printed({{"GPUPOOL_TRACE", "1"}, {"GPUPOOL_TRACE_FILE", folder.path() / "trace.%p.%p"}});
  CHECK(text.empty());
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    ++files;
    CHECK(entry.path().string().find('%') == std::string::npos);
    std::ifstream file(entry.path());
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    CHECK(row(content, "launch").size() == 6);
  }
  CHECK(files == 1);
}

TEST_CASE("trace: a file that cannot be written is replaced by stderr") {
  CHECK(row(printed({{"GPUPOOL_TRACE", "1"}, {"GPUPOOL_TRACE_FILE", "/nonexistent/folder/trace"}}), "launch")
            .size() == 6);
}

TEST_CASE("trace: a forked child does not print its parent's statistics") {
  const auto got = in_child(
      {{"GPUPOOL_STATS", "1"}},
      [] {
        trace::start();
        trace::count_call(kLaunch, 100, milliseconds(1));
        const pid_t child = ::fork();
        if (child == 0) std::exit(0);
        ::waitpid(child, nullptr, 0);
        return std::string();
      },
      true);
  const size_t first = got.errors.find("calls sent");
  CHECK(first != std::string::npos);
  CHECK(got.errors.rfind("calls sent") == first);
}
