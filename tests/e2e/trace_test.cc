// The client's statistics about its own calls: GPUPOOL_TRACE and pool-run --stats.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/e2e/pool.h"
#include "tests/support/catch.h"
#include "tests/support/proxy.h"

using namespace gpupool::testing;

namespace {

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A program's stdout and stderr, separately.
struct Told {
  int status = -1;
  std::string out, err;
};
Told run_apart(const std::vector<std::string>& words, const Environment& environment) {
  TemporaryFolder folder;
  std::vector<std::string> all{"/bin/sh", "-c", "exec \"$@\" >\"$0.out\" 2>\"$0.err\"",
                               folder.path() / "told"};
  all.insert(all.end(), words.begin(), words.end());
  const int status = run_patiently(all, environment).status;
  return {status, content(folder.path() / "told.out"), content(folder.path() / "told.err")};
}

}  // namespace

TEST_CASE("the trace counts what passes on the wire") {
  Pool pool;
  Proxy proxy(pool.poold().endpoint());
  TemporaryFolder folder;
  const Told told = run_apart({driver_app(), "asynchronous_calls", "3"},
                              pool.through({{"GPUPOOL", proxy.url()},
                                            {"GPUPOOL_TRANSPORT", "tcp"},
                                            {"GPUPOOL_TRACE", "1"},
                                            {"GPUPOOL_TRACE_FILE", folder.path() / "trace.%p"}}));
  INFO(told.err);
  REQUIRE(told.status == 0);
  CHECK(told.err.find("gpupool:") == std::string::npos);  // the table goes to the file
  std::string table;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) table += content(entry.path());
  INFO(table);
  CHECK(table.find("gpupool: launch ") != std::string::npos);
  const size_t at = table.find("gpupool: total");
  REQUIRE(at != std::string::npos);
  unsigned long long calls = 0, round_trips = 0, sent = 0, received = 0;
  REQUIRE(std::sscanf(table.c_str() + at, "gpupool: total %llu %llu %llu %llu", &calls, &round_trips, &sent,
                      &received) == 4);
  // Acknowledgements are no calls: one for each 256 KiB received, and one when the program ends.
  CHECK(calls < proxy.commands());
  CHECK(proxy.commands() <= calls + 1 + received / (256u << 10));
  CHECK(round_trips == proxy.round_trips());
  CHECK(sent > 24 * calls);
  CHECK(received >= 32 * round_trips);
  CHECK(received <= proxy.from_server());
}

TEST_CASE("statistics are for stderr and only for who asks") {
  Pool pool;
  const Environment environment = pool.through();
  const Told silent = run_apart({driver_app(), "asynchronous_calls", "1"}, environment);
  REQUIRE(silent.status == 0);
  CHECK(silent.err.empty());
  const Told told =
      run_apart({program_path("pool-run"), "--stats", driver_app(), "asynchronous_calls", "1"}, environment);
  INFO(told.err);
  REQUIRE(told.status == 0);
  CHECK(told.out == silent.out);
  CHECK(told.err.find("calls sent") != std::string::npos);
  CHECK(told.err.find("most frequent: ") != std::string::npos);
}
