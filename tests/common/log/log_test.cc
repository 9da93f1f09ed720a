#include "common/log/log.h"

#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;

namespace {

// Returns the lines that `act` logs.
template <class Act>
std::string logged(log::Format format, log::Level level, Act act) {
  char name[] = "/tmp/gpupool-log-XXXXXX";
  const int file = ::mkstemp(name);
  ::unlink(name);
  log::start(file, level, format, "test");
  act();
  std::string text(static_cast<size_t>(::lseek(file, 0, SEEK_END)), '\0');
  REQUIRE(::pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  log::start(STDERR_FILENO, log::Level::off, log::Format::text, "test");
  ::close(file);
  return text;
}

}  // namespace

TEST_CASE("a line has time, level, component, event and fields") {
  const std::string text = logged(log::Format::text, log::Level::info, [] {
    log::warning(
        "client_refused",
        {{"client", "127.0.0.1:5"}, {"count", -3}, {"reason", "too \"long\"\n\x01\xff"}, {"empty", ""}});
  });
  CHECK(text.find(" warning test[") != std::string::npos);
  CHECK(text.find(
            R"( client_refused client=127.0.0.1:5 count=-3 reason="too \"long\"\n\u0001\u00ff" empty="")") !=
        std::string::npos);
  CHECK(text.find('\n') == text.size() - 1);
}

TEST_CASE("JSON lines are objects") {
  const std::string text = logged(log::Format::json, log::Level::info, [] {
    log::info("session_started", {{"session", 7}, {"program", "a\"b\\c"}});
  });
  CHECK(text.starts_with("{\"time\":\"2"));
  CHECK(text.find(R"("level":"info","component":"test","pid":)") != std::string::npos);
  CHECK(text.find(R"("event":"session_started","session":7,"program":"a\"b\\c"})") != std::string::npos);
}

TEST_CASE("levels below the chosen one are left out") {
  CHECK(logged(log::Format::text, log::Level::warning, [] { log::info("x"); }).empty());
  CHECK(logged(log::Format::text, log::Level::off, [] { log::error("x"); }).empty());
  CHECK_FALSE(logged(log::Format::text, log::Level::debug, [] { log::debug("x"); }).empty());
}

TEST_CASE("names of levels and formats are read and written") {
  log::Level level{};
  log::Format format{};
  for (const char* name : {"debug", "info", "warning", "error", "off"}) {
    REQUIRE(log::parse(name, level));
    CHECK(std::string(log::name_of(level)) == name);
  }
  for (const char* name : {"text", "json"}) {
    REQUIRE(log::parse(name, format));
    CHECK((format == log::Format::json) == (std::string(name) == "json"));
  }
  CHECK_FALSE(log::parse("loud", level));
  CHECK_FALSE(log::parse("", format));
}

TEST_CASE("lines of several threads do not mix") {
  const std::string text = logged(log::Format::text, log::Level::info, [] {
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
      threads.emplace_back([number] {
        for (int round = 0; round < 200; ++round)
          log::info("line", {{"from", number}, {"filler", std::string(300, 'x')}});
      });
    }
    for (auto& thread : threads) thread.join();
  });
  size_t lines = 0;
  for (size_t at = 0; at < text.size(); ++lines) {
    const size_t end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    REQUIRE(text.substr(end - 300, 300) == std::string(300, 'x'));
    at = end + 1;
  }
  CHECK(lines == 800);
}
