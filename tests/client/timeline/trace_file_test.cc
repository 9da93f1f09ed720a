// Tests the file of a timeline: complete JSON after each write, bounded, shared by processes, mended after a
// kill.
#include "client/timeline/trace_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/client/timeline/events.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::client::timeline;
using namespace gpupool::client::timeline::test;
using gpupool::testing::eventually;
using gpupool::testing::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

std::string event(const std::string& name) {
  return R"({"ph":"i","name":")" + name + R"(","pid":1,"tid":1,"ts":0.000,"args":{"x":1}})";
}

void append(const std::string& path, const std::string& name) {
  auto file = TraceFile::open(path);
  REQUIRE(file);
  REQUIRE(file->append(event(name)));
}

// Runs in a child, which must end without Catch2.
template <class Body>
pid_t in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  body();
  ::_exit(0);
}

}  // namespace

TEST_CASE("the file is JSON after each write, with and without pool-run") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  const bool created = GENERATE(false, true);
  if (created) REQUIRE(TraceFile::create(path, event("first")));
  for (int i = 0; i < 3; ++i) {
    append(path, "later");
    CHECK(count_named(path, "later") == static_cast<size_t>(i) + 1);
  }
  CHECK(count_named(path, "first") == (created ? 1 : 0));
  REQUIRE(TraceFile::create(path, event("again")));
  CHECK(events(path).size() == 1);
}

TEST_CASE("a file that is something else is not touched") {
  const TemporaryFolder folder;
  const std::string path = folder.write("notes", "dear diary");
  const auto file = TraceFile::open(path);
  REQUIRE(!file);
  CHECK(file.error().code == ErrorCode::invalid);
  CHECK(content(path) == "dear diary");
  CHECK(!TraceFile::open(folder.path() / "no folder" / "out.json"));
  CHECK(!TraceFile::create("/proc/out.json", event("first")));
}

TEST_CASE("the file ends at its limit, and keeps room for the reasons") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  constexpr uint64_t kLimit = 200'000;
  auto file = TraceFile::open(path, kLimit);
  REQUIRE(file);
  size_t written = 0;
  Result<void> result;
  while ((result = file->append(event("one")))) ++written;
  CHECK(result.error().code == ErrorCode::limit);
  CHECK(fs::file_size(path) <= kLimit - TraceFile::kLastBytes);
  CHECK(fs::file_size(path) > kLimit - TraceFile::kLastBytes - 200);
  CHECK(!file->append(event("one")));
  CHECK(file->append_last(event("last")));
  CHECK(fs::file_size(path) <= kLimit);
  CHECK(count_named(path, "one") == written);
  CHECK(count_named(path, "last") == 1);
}

TEST_CASE("a line that a kill has cut is removed by the next writer") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  REQUIRE(TraceFile::create(path, event("first")));
  append(path, "second");
  const std::string whole = content(path);
  // What a write of a third event leaves that was cut anywhere.
  const std::string third = whole.substr(0, whole.size() - 3) + ",\n" + event("third") + "\n]\n";
  const size_t cut = GENERATE(range(size_t{1}, size_t{70}));
  folder.write("out.json", third.substr(0, whole.size() - 3 + cut));
  append(path, "fourth");
  CHECK(count_named(path, "first") == 1);
  CHECK(count_named(path, "fourth") == 1);
  if (cut > 1) CHECK(count_named(path, "second") == 1);  // its line was complete
}

TEST_CASE("processes append to one file at the same time") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    children.push_back(in_child([&] {
      auto file = TraceFile::open(path);
      for (int i = 0; file && i < 100; ++i) {
        if (!file->append(event("one") + ",\n" + event("two"))) ::_exit(1);
      }
    }));
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(count_named(path, "one") == 400);
  CHECK(count_named(path, "two") == 400);
}

TEST_CASE("writers that are killed leave a file that the next one can use") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "out.json";
  REQUIRE(TraceFile::create(path, event("first")));
  for (int round = 0; round < 10; ++round) {
    const auto before = fs::file_size(path);
    const pid_t child = in_child([&] {
      auto file = TraceFile::open(path);
      const std::string many = event("many") + ",\n" + event(std::string(100'000, 'x'));
      while (file && file->append(many)) {
      }
    });
    const bool written = eventually([&] { return fs::file_size(path) >= before + 200'000; });
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    REQUIRE(written);
    append(path, "after");
    CHECK(count_named(path, "after") == static_cast<size_t>(round) + 1);
    if (fs::file_size(path) > 50'000'000) REQUIRE(TraceFile::create(path, event("first")));
    if (fs::file_size(path) < 1000) break;
  }
}
