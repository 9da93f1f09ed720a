// An audit file: each line is there when append() returns, and one that takes no lines holds up nobody.
#include "server/log/audit_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/support/catch.h"
#include "tests/support/full_pipe.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;

TEST_CASE("an audit file has each line when append() returns") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "audit";
  server::AuditFile file(path);
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

TEST_CASE("an audit file that takes no lines is waited for once, loses none, and goes on") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "fifo";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  fill_pipe(reader);
  {
    server::AuditFile file(path);
    REQUIRE(file.open());
    CHECK_FALSE(file.stalled());
    file.append("event", {{"number", 0}});
    CHECK(eventually([&] { return file.stalled(); }));
    const int lines = static_cast<int>(server::AuditFile::kMostWaiting);
    for (int i = 1; i < lines; ++i) file.append("event", {{"number", i}});
    for (int i = 0; i < 10; ++i) file.append_if_room("denied", {{"number", i}});
    REQUIRE(file.open());  // asks for the file to be opened again, and does not wait either
    std::string text;
    CHECK(eventually([&] {
      char bytes[64 * 1024];
      const ssize_t got = ::read(reader, bytes, sizeof bytes);
      if (got > 0) text.append(bytes, static_cast<size_t>(got));
      return !file.stalled();
    }));
    char bytes[64 * 1024];
    for (ssize_t got = 0; (got = ::read(reader, bytes, sizeof bytes)) > 0;) text.append(bytes, static_cast<size_t>(got));
    for (const int number : {0, 1, lines - 1}) CHECK(text.find("\"event\",\"number\":" + std::to_string(number) + "}") != std::string::npos);
    CHECK(text.find("denied") == std::string::npos);
    CHECK(text.find("\"audit_records_lost\",\"count\":10}") != std::string::npos);
    file.append("after", {{"number", 0}});
    CHECK_FALSE(file.stalled());
  }
  ::close(reader);
}
