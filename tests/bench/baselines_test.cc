// Tests of the raw TCP baselines, of the choice of the fastest one, and of figures as a Markdown table.
#include "tests/bench/baselines.h"

#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool::bench;

TEST_CASE("raw TCP is measured with every combination of buffers, waiting and streams") {
  Samples raw;
  measure_tcp("copy", 256 << 10, 4, raw);
  const std::vector<std::string> names = raw.names("copy: ");
  std::set<std::string> expected;
  for (const char* streams : {"1 x ", "2 x ", "4 x "}) {
    for (const char* buffers : {"system's buffers", "256 KiB", "4096 KiB"}) {
      for (const char* wait : {"", ", spinning"})
        expected.insert(std::string("copy: ") + streams + buffers + wait);
    }
  }
  CHECK(std::set<std::string>(names.begin(), names.end()) == expected);
  for (const std::string& name : names) CHECK(raw.median(name) > 0);
}

TEST_CASE("a ping-pong is measured with sleeping and with spinning peers") {
  CHECK(ping_pong_us(32, 32, false) > 0);
  CHECK(ping_pong_us(32, 32, true) > 0);
}

TEST_CASE("the fastest TCP settings are those with the highest median over all rounds") {
  Samples raw;
  for (const double rate : {1.0, 1.1, 9.0}) raw.add("copy: lucky once", rate);
  for (const double rate : {2.0, 2.1, 2.2}) raw.add("copy: fastest", rate);
  raw.add("copy of another size: faster", 50);
  CHECK(fastest_tcp("copy", raw).settings == "fastest");
  CHECK(fastest_tcp("copy", raw).GBps == 2.1);
  CHECK_THROWS(fastest_tcp("never measured", raw));
}

TEST_CASE("figures are printed as a Markdown table") {
  const gpupool::testing::TemporaryFolder folder;
  const std::string file = folder.path() / "table.md";
  write_markdown(file, {{"null_call", "tcp", 6, "us", "ping-pong", 4, {Target::Kind::ratio_at_most, 1.3}},
                        {"grants", "grpc", 3000, "per second", "16 holders", 0}});
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  CHECK(text.str() ==
        "| figure | via | value | baseline | ratio | target | reached |\n|---|---|---|---|---|---|---|\n"
        "| `null_call` | tcp | 6 us | ping-pong: 4 us | 1.50 | <= 1.3 x | **no** |\n"
        "| `grants` | grpc | 3000 per second | 16 holders |  |  |  |\n");
  write_markdown(file, {{"null_call", "tcp", 6, "us", "ping-pong", 4, {}, 0.75},
                        {"grants", "grpc", 3000, "per second", "16 holders", 0}});
  text.str("");
  text << std::ifstream(file).rdbuf();
  CHECK(text.str() ==
        "| figure | via | value | baseline | ratio | target | reached | ratio with costs "
        "|\n|---|---|---|---|---|---|---|---|\n"
        "| `null_call` | tcp | 6 us | ping-pong: 4 us | 1.50 |  |  | 0.75 |\n"
        "| `grants` | grpc | 3000 per second | 16 holders |  |  |  |  |\n");
}
