// Tests how poold checks, marks and limits the lines that a worker writes to poold's log. The test acts as a
// worker that a client has taken over.
#include "server/poold/workers/worker_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <string>
#include <vector>

#include "common/log/log.h"
#include "common/log/relayed_line.h"
#include "tests/support/catch.h"
#include "tests/support/has.h"
#include "tests/support/hostile_descriptors.h"
#include "tests/support/skip.h"

using namespace gpupool;
using namespace gpupool::server;
using namespace gpupool::testing;

namespace {

struct Relay {
  explicit Relay(log::Format format = log::Format::text) {
    file = ::memfd_create("log", MFD_CLOEXEC);
    log::start(file, log::Level::info, format, "poold");
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    output = std::make_shared<WorkerLog>(context, ends[0], 77);
    output->watch([this](const std::string& why) { complaints.push_back(why); });
  }
  ~Relay() {
    output->finish();
    ::close(ends[1]);
    log::start(STDERR_FILENO, log::Level::off, log::Format::text, "test");
    ::close(file);
  }
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(ends[1], bytes.data(), bytes.size());
      if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
      run();
    }
  }
  void run() {
    context.restart();
    context.poll();
  }
  std::string text() {
    run();
    std::string all(static_cast<size_t>(::lseek(file, 0, SEEK_END)), '\0');
    REQUIRE(::pread(file, all.data(), all.size(), 0) == static_cast<ssize_t>(all.size()));
    return all;
  }
  asio::io_context context;
  int file = -1;
  int ends[2];
  std::vector<std::string> complaints;
  std::shared_ptr<WorkerLog> output;
};

}  // namespace

TEST_CASE("poold adds the worker and session to each line of a worker") {
  Relay relay;
  relay.write(
      "warning rdma_setting_ignored reason=\"a \\\"b\\\"\\n\\u0001\" count=-3 share=0.50 session=9 pid=1\n");
  CHECK(
      has(relay.text(),
          " warning worker[77] rdma_setting_ignored reason=\"a \\\"b\\\"\\n\\u0001\" count=-3 share=0.50\n"));
  relay.output->set_session(5);
  relay.write("info session_running session=9 client=x\n");
  CHECK(has(relay.text(), " info worker[77] session_running session=5 client=x\n"));
}

TEST_CASE("lines of a worker become JSON if the log is JSON without fields that poold fills in") {
  Relay relay(log::Format::json);
  relay.output->set_session(5);
  relay.write(
      "info event_name text=x number=7 octal=007 pid=1 component=poold event=other time=0 level=error "
      "session=1\n");
  const std::string text = relay.text();
  CHECK(has(
      text,
      R"("level":"info","component":"worker","pid":77,"event":"event_name","session":5,"text":"x","number":7,"octal":"007"})"
      "\n"));
}

TEST_CASE("a worker cannot forge a line") {
  const auto format = GENERATE(log::Format::text, log::Format::json);
  Relay relay(format);
  relay.output->set_session(5);
  const std::string forged[] = {
      "2026-01-01T00:00:00.000Z info poold[1] session_started session=99",
      R"({"time":"x","level":"info","component":"poold","pid":1,"event":"forged"})",
      "info",
      "info ",
      "off event",
      "info Event x=1",
      "info event x",
      "info event x=",
      "info event x=1  y=2",
      "info event x=\"1",
      "info event x=\"1\"y=2",
      "info event x=\"\\u0x\"",
      "info event x=\"\\",
      "info event x=\x1b[2J",
      "info event \",\"pid\":1=2",
      std::string("info event x=\0", 14),
      "\r2026 info poold[1] forged",
  };
  for (const std::string& line : forged) relay.write(line + "\n");
  const std::string text = relay.text();
  INFO(text);
  size_t lines = 0;
  for (size_t at = 0; at < text.size(); ++lines) {
    const size_t end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    const std::string line = text.substr(at, end - at);
    CHECK(has(line, "worker_output"));
    CHECK(has(line, format == log::Format::text
                        ? " info worker[77] worker_output session=5 line="
                        : "\"pid\":77,\"event\":\"worker_output\",\"session\":5,\"line\":\""));
    CHECK(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c < 0x7f; }));
    at = end + 1;
  }
  CHECK(lines == std::size(forged));
}

TEST_CASE("the length of a worker's line is limited and an unterminated last line is logged") {
  Relay relay;
  relay.write(std::string(100'000, 'x') + "\nrest");
  relay.output->finish();
  const std::string text = relay.text();
  CHECK(has(text, "line=" + std::string(WorkerLog::kMostLine, 'x') +
                      " bytes_cut=" + std::to_string(100'000 - WorkerLog::kMostLine)));
  CHECK(has(text, "line=rest\n"));
}

TEST_CASE("the rate of a worker's lines is limited and lost lines are counted") {
  Relay relay;
  for (int i = 0; i < 10'000; ++i) relay.write("info flood\n");
  relay.output->finish();
  const std::string text = relay.text();
  CHECK(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) < 9'000);
  CHECK(has(text, " warning poold["));
  CHECK(has(text, "worker_lines_lost worker=77 session=0 lines="));
}

// As if another process had the worker's end, and wrote faster than poold reads.
TEST_CASE("poold reads a bounded part of what is written after a worker's end") {
  constexpr int kBytes = 3 << 20;
  constexpr size_t kLine = 1024, kMostRead = 1 << 20;
  Relay relay;
  constexpr int buffer = 4 * kBytes;
  if (::setsockopt(relay.ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer) != 0)
    return report_skip("only root can make the socket's buffer large enough");
  std::string piece;
  while (piece.size() < 16 * kLine) piece += std::string(kLine - 1, 'x') + "\n";
  for (size_t sent = 0; sent < kBytes; sent += piece.size())
    REQUIRE(::write(relay.ends[1], piece.data(), piece.size()) == static_cast<ssize_t>(piece.size()));
  relay.output->finish();
  const std::string text = relay.text();
  const std::string count = "worker_lines_lost worker=77 session=0 lines=";
  size_t lines = 0;
  for (size_t at = 0; (at = text.find(" worker_output ", at)) != text.npos; ++at) ++lines;
  for (size_t at = 0; (at = text.find(count, at)) != text.npos; ++at)
    lines += std::stoul(text.substr(at + count.size()));
  CHECK(lines >= kMostRead / kLine / 2);
  CHECK(lines <= kMostRead / kLine + 1);
}

TEST_CASE("descriptors with a worker's lines are not received, and reported once") {
  Relay relay;
  relay.write("info first\n");
  REQUIRE(send_with_descriptors(relay.ends[1], "info second\n", {relay.file}) == 0);
  relay.write("info third\n");
  relay.run();
  REQUIRE(relay.complaints.size() == 1);
  CHECK(has(relay.complaints[0], "descriptors"));
  relay.output->finish();
  CHECK(has(relay.text(), " first\n"));
  CHECK_FALSE(has(relay.text(), " second\n"));
  CHECK_FALSE(has(relay.text(), " third\n"));
}

TEST_CASE("poold parses the lines that a worker's log writes") {
  const int file = ::memfd_create("log", MFD_CLOEXEC);
  log::start_to_poold(file, log::Level::debug);
  log::error("event", {{"text", "a \"b\"\n\x01\xff\\"},
                       {"empty", ""},
                       {"plain", "x"},
                       {"digits", "7"},
                       {"number", -7},
                       {"part", log::Number{"0.5"}}});
  log::start(STDERR_FILENO, log::Level::off, log::Format::text, "test");
  std::string line(static_cast<size_t>(::lseek(file, 0, SEEK_END)), '\0');
  REQUIRE(::pread(file, line.data(), line.size(), 0) == static_cast<ssize_t>(line.size()));
  ::close(file);
  REQUIRE(line.ends_with('\n'));
  line.pop_back();
  const auto parsed = log::parse_relayed(line);
  REQUIRE(parsed);
  CHECK(parsed->level == log::Level::error);
  CHECK(parsed->event == "event");
  REQUIRE(parsed->parts.size() == 6);
  CHECK(parsed->parts[0].value == "a \"b\"\n\x01\xff\\");
  CHECK(parsed->parts[1].value.empty());
  CHECK(parsed->parts[2].quoted);
  CHECK_FALSE(parsed->parts[4].quoted);
  CHECK(parsed->parts[5].value == "0.5");
}
