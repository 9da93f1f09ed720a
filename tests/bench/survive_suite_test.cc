// A quick run of the suite `survive`: every figure is reported. Speeds are not checked, because machines
// differ, except that a cut takes much less time than a time-out.
#include "tests/bench/quick_run.h"

using namespace gpupool::testing;

TEST_CASE("a quick survive suite reports the silence after cuts and the cost of numbering") {
  const QuickRun run = quick_run({"--suite", "survive"}, std::chrono::minutes(5));
  INFO(run.output);
  for (const std::string transport : {"tcp", "tls", "shm"}) {
    for (const std::string name : {"silence_p50", "silence_p99", "silence_longest"}) {
      CHECK(run.value(name, transport) > 0);
      CHECK(run.value(name, transport) < 5'000);
    }
    for (const std::string name :
         {"numbered_null_call", "numbered_launch", "numbered_h2d_4_kib", "numbered_h2d_16_mib",
          "numbered_d2h_16_mib", "numbered_pageable_h2d_16_mib"}) {
      CHECK(run.value(name, transport) > 0);
      CHECK(run.value(name, transport, "baseline_value") > 0);
    }
  }
}

TEST_CASE("parts of the survive suite can be chosen") {
  const QuickRun run = quick_run({"--suite", "survive", "--only", "silence"}, std::chrono::minutes(5));
  CHECK(run.json.find("silence_p99") != std::string::npos);
  CHECK(run.json.find("numbered") == std::string::npos);
}

TEST_CASE("a quick survive suite moves a session of 64 MiB") {
  const QuickRun run = quick_run({"--suite", "survive", "--only", "moves"}, std::chrono::minutes(5));
  INFO(run.output);
  for (const std::string name : {"silence_p50", "silence_p99", "whole"}) {
    CHECK(run.value("move_64MiB_" + name, "tcp") > 0);
    CHECK(run.value("move_64MiB_" + name, "tcp") < 60'000);
  }
  CHECK(run.value("move_64MiB_sent_in_silence", "tcp") < 100);
}

TEST_CASE("a quick survive suite upgrades poold") {
  const QuickRun run = quick_run({"--suite", "survive", "--only", "upgrades"}, std::chrono::minutes(5));
  INFO(run.output);
  CHECK(run.value("upgrade_whole", "auto") > 0);
  CHECK(run.value("upgrade_whole", "auto") < 30'000);
  CHECK(run.value("upgrade_longest_launch", "auto") < 30'000);
}

TEST_CASE("a quick survive suite empties a host") {
  const QuickRun run = quick_run({"--suite", "survive", "--only", "drains"}, std::chrono::minutes(5));
  INFO(run.output);
  CHECK(run.value("drain_32_sessions_p50", "tcp") > 0);
  CHECK(run.value("drain_32_sessions_longest", "tcp") < 120);
}
