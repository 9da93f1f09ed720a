// Tests that a log which accepts no lines does not block its writers.
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "common/log/descriptor_sink.h"
#include "common/log/log.h"
#include "tests/support/catch.h"
#include "tests/support/full_pipe.h"
#include "tests/support/processes.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

// A pipe that is full until its reading end is read.
struct FullPipe {
  FullPipe() {
    REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    fill_pipe(ends[1]);
    ::fcntl(ends[1], F_SETFL, 0);
  }
  ~FullPipe() {
    for (const int end : ends) ::close(end);
  }
  std::string read_until(const std::string& text) const {
    std::string all;
    CHECK(eventually([&] {
      all += read_some();
      return all.find(text) != std::string::npos;
    }));
    return all;
  }
  std::string read_some() const {
    std::string bytes(64 * 1024, '\0');
    const ssize_t got = ::read(ends[0], bytes.data(), bytes.size());
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  int ends[2];
};

}  // namespace

TEST_CASE("a log without a reader blocks no writer and reports the number of lost lines") {
  const FullPipe pipe;
  log::start(pipe.ends[1], log::Level::info, log::Format::text, "test");
  log::write_in_background();
  const std::string filler(1000, 'x');
  const int lines = static_cast<int>(log::DescriptorSink::kMostBytes / 1000) + 100;
  for (int i = 0; i < lines; ++i) log::info("line", {{"number", i}, {"filler", filler}});
  CHECK_FALSE(log::flush(std::chrono::milliseconds(1)));
  std::string text = pipe.read_until("log_lines_lost");
  CHECK(eventually([&] {
    text += pipe.read_some();
    return log::flush(std::chrono::milliseconds(1));
  }));
  CHECK(text.find(" info test[") != std::string::npos);
  CHECK(text.find("line number=0 ") != std::string::npos);
  text += pipe.read_some();
  CHECK(text.find("line number=" + std::to_string(lines - 1) + " ") == std::string::npos);
  log::info("last");
  CHECK(log::flush(kPatience));
  CHECK(pipe.read_until("last").find("log_lines_lost") == std::string::npos);
  log::start(STDERR_FILENO, log::Level::off, log::Format::text, "test");
}

TEST_CASE("a log on a non-blocking descriptor loses no lines") {
  const FullPipe pipe;
  ::fcntl(pipe.ends[1], F_SETFL, O_NONBLOCK);
  log::start(pipe.ends[1], log::Level::info, log::Format::text, "test");
  log::write_in_background();
  log::info("one");
  (void)pipe.read_until(" one\n");
  log::start(STDERR_FILENO, log::Level::off, log::Format::text, "test");
}
