// Tests the audit file: append() returns once the line is written, and a file that blocks does not block the
// caller for ever.
#include "common/log/audit_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/full_pipe.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// The `seq` of each line in the file's order; 0 for a line without one.
std::vector<uint64_t> numbers(const std::string& text) {
  std::vector<uint64_t> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("\"seq\":");
    all.push_back(at == line.npos ? 0 : std::stoull(line.substr(at + 6)));
  }
  return all;
}

std::set<std::string> boots(const std::string& text) {
  std::set<std::string> all;
  for (size_t at = 0; (at = text.find("{\"boot\":\"", at)) != text.npos; ++at)
    all.insert(text.substr(at + 9, 16));
  return all;
}

}  // namespace

TEST_CASE("an audit file has each line when append() returns") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit";
  AuditFile file(path);
  REQUIRE(file.open());
  for (int i = 0; i < 100; ++i) {
    file.append("event", {{"number", i}});
    CHECK_FALSE(file.stalled());
  }
  const int read = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text(100'000, '\0');
  text.resize(static_cast<size_t>(::read(read, text.data(), text.size())));
  ::close(read);
  CHECK(text.find("\"number\":99}\n") != std::string::npos);
}

TEST_CASE("a blocked audit file delays one append only and loses no line") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "fifo";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  fill_pipe(reader);
  {
    AuditFile file(path);
    REQUIRE(file.open());
    CHECK_FALSE(file.stalled());
    file.append("event", {{"number", 0}});
    CHECK(eventually([&] { return file.stalled(); }));
    const int lines = static_cast<int>(AuditFile::kMostWaiting);
    for (int i = 1; i < lines; ++i) file.append("event", {{"number", i}});
    for (int i = 0; i < 10; ++i) file.append_if_room("denied", {{"number", i}});
    REQUIRE(file.open());  // requests that the file be reopened, without waiting either
    std::string text;
    CHECK(eventually([&] {
      char bytes[64 * 1024];
      const ssize_t got = ::read(reader, bytes, sizeof bytes);
      if (got > 0) text.append(bytes, static_cast<size_t>(got));
      return !file.stalled();
    }));
    char bytes[64 * 1024];
    for (ssize_t got = 0; (got = ::read(reader, bytes, sizeof bytes)) > 0;)
      text.append(bytes, static_cast<size_t>(got));
    for (const int number : {0, 1, lines - 1})
      CHECK(text.find("\"event\",\"number\":" + std::to_string(number) + "}") != std::string::npos);
    CHECK(text.find("denied") == std::string::npos);
    // Lost records also leave a gap in the numbers.
    const auto seq = numbers(text);
    REQUIRE(seq.size() == AuditFile::kMostWaiting + 1);
    CHECK(seq.back() == seq.size() + 10);
    CHECK(seq[seq.size() - 2] == seq.size() - 1);
    CHECK(file.counts().records == seq.back());
    CHECK(file.counts().lost == 10);
    CHECK(text.find("\"audit_records_lost\",\"count\":10}") != std::string::npos);
    file.append("after", {{"number", 0}});
    CHECK_FALSE(file.stalled());
  }
  ::close(reader);
}

TEST_CASE("lines are numbered without gaps across a rotation and name the process that wrote them") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit";
  for (int process = 0; process < 2; ++process) {
    AuditFile file(path);
    REQUIRE(file.open());
    for (int i = 0; i < 5; ++i) file.append("event", {{"number", i}});
    std::filesystem::rename(path, path + ".1");
    REQUIRE(file.open());
    for (int i = 0; i < 5; ++i) file.append_if_room("event", {{"number", i}});
    CHECK(file.counts().records == 10);
    CHECK(file.counts().lost == 0);
    CHECK(numbers(content_of(path + ".1")) == std::vector<uint64_t>{1, 2, 3, 4, 5});
    CHECK(numbers(content_of(path)) == std::vector<uint64_t>{6, 7, 8, 9, 10});
    CHECK(boots(content_of(path)) == boots(content_of(path + ".1")));
    CHECK(boots(content_of(path)).size() == 1);
    std::filesystem::rename(path, path + "." + std::to_string(process + 2));
  }
  CHECK(boots(content_of(path + ".2")) != boots(content_of(path + ".3")));
}

TEST_CASE("a file that other users can write is not used as the audit file") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit";
  const auto write_and_permit = [&](unsigned mode) {
    std::ofstream(path) << "";
    std::filesystem::permissions(path, std::filesystem::perms(mode));
  };
  for (const unsigned mode : {0606u, 0660u, 0622u}) {
    write_and_permit(mode);
    AuditFile file(path);
    const auto opened = file.open();
    REQUIRE_FALSE(opened);
    CHECK(opened.error().message.find("'" + path + "': other users can write it") != std::string::npos);
  }
  write_and_permit(0640);
  AuditFile file(path);
  REQUIRE(file.open());
  file.append("event", {{"number", 0}});
  std::filesystem::rename(path, path + ".1");
  write_and_permit(0666);
  REQUIRE(file.open());  // the thread keeps the old file
  file.append("event", {{"number", 1}});
  CHECK(numbers(content_of(path + ".1")) == std::vector<uint64_t>{1, 2});
  CHECK(content_of(path).empty());
}

TEST_CASE("a record torn by a full disk does not damage other records") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit";
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  {
    AuditFile file(path);
    REQUIRE(file.open());
    file.append("event", {{"number", 0}});
    const rlimit full{content_of(path).size() + 30, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
    for (int i = 1; i < 3; ++i) file.append("event", {{"number", i}});
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    for (int i = 3; i < 5; ++i) file.append("event", {{"number", i}});
    CHECK(file.counts().records == 5);
    CHECK(file.counts().lost == 2);
  }
  std::istringstream lines(content_of(path));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  REQUIRE(all.size() == 4);
  CHECK(all[0].ends_with("\"number\":0}"));
  CHECK(all[1].size() == 30);
  CHECK(all[2].ends_with("\"number\":3}"));
  CHECK(all[3].ends_with("\"number\":4}"));
  CHECK(numbers(content_of(path)) == std::vector<uint64_t>{1, 0, 4, 5});
}
