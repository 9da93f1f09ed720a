// Tests the client library's log lines, much of whose text comes from a server.
#include "client/process/log.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/hostile_text.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

std::string heard;

std::string line_of(const std::string& text) {
  client::error_listener = [](const char* line, size_t length) { heard.assign(line, length); };
  client::log_error("cannot use the server %s", text.c_str());
  client::error_listener = nullptr;
  return heard;
}

}  // namespace

TEST_CASE("replaces control characters in log lines") {
  CHECK(line_of("größe") == "cannot use the server größe");
  CHECK(line_of("x\ngpupool: forged") == "cannot use the server x?gpupool: forged");
  CHECK(is_harmless(line_of(kHostileText)));
}

TEST_CASE("truncates a log line at a character boundary") {
  for (size_t length = 955; length < 975; ++length) {
    const std::string line = line_of(std::string(length, 'x') + "ööööööööööööööööööööö");
    CHECK(line.size() < 1024);
    CHECK((line.ends_with("ö") || line.ends_with("?")));
  }
}
