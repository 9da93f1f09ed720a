#include "common/text/units.h"

#include "common/text/suggestion.h"
#include "tests/support/catch.h"

using gpupool::gpus_text;
using gpupool::milli_text;
using gpupool::parse_gpus;
using gpupool::parse_memory;
using gpupool::parse_rate;
using gpupool::parse_size;
using gpupool::size_text;
using gpupool::suggestion;

TEST_CASE("sizes are read exactly") {
  const std::pair<const char*, uint64_t> sizes[] = {{"0", 0},
                                                    {"4096", 4096},
                                                    {"8GiB", 8ull << 30},
                                                    {"8 GiB", 8ull << 30},
                                                    {"1.5GiB", 3ull << 29},
                                                    {"0.000001MB", 1},
                                                    {"1GB", 1'000'000'000},
                                                    {"3kB", 3000},
                                                    {"3KiB", 3072},
                                                    {"7B", 7},
                                                    {"16777215TiB", 16777215ull << 40},
                                                    {"18446744.073709551615TB", 18446744073709551615ull}};
  for (const auto& [text, bytes] : sizes) {
    INFO(text);
    REQUIRE(parse_size(text));
    CHECK(*parse_size(text) == bytes);
  }
  for (const char* const text : {"",
                                 "GiB",
                                 "8Gib",
                                 "8GX",
                                 "-1",
                                 "+1",
                                 "1.GiB",
                                 ".5GiB",
                                 "1.5",
                                 "1.5B",
                                 "0.3KiB",
                                 "8GiB ",
                                 " 8GiB",
                                 "8  GiB",
                                 "1e3",
                                 "16777216TiB",
                                 "18446744073709551616",
                                 "1GB/s",
                                 "0x10",
                                 "1,5GiB"}) {
    INFO(text);
    REQUIRE_FALSE(parse_size(text));
    CHECK(parse_size(text).error().message.find("8GiB") != std::string::npos);
  }
  CHECK(*parse_rate("1GB/s") == 1'000'000'000);
  CHECK(*parse_rate("12.5MiB/s") == 13107200);
  CHECK(*parse_rate("100") == 100);
  CHECK_FALSE(parse_rate("1GB/min"));
  CHECK_FALSE(parse_rate("/s"));
}

TEST_CASE("a misspelled unit of a size is refused with the valid spellings") {
  const std::pair<const char*, const char*> sizes[] = {{"2G", "2GiB or 2GB"},
                                                       {"2gb", "2GB"},
                                                       {"1.5 gib", "1.5GiB"},
                                                       {"512m", "512MiB or 512MB"},
                                                       {"4Gi", "4GiB"}};
  for (const auto& [text, right] : sizes) {
    INFO(text);
    REQUIRE_FALSE(parse_size(text));
    CHECK(parse_size(text).error().message ==
          "'" + std::string(text) + "' is not a size; write it as " + right);
  }
  CHECK(parse_rate("1gb/s").error().message == "'1gb/s' is not a rate; write it as 1GB, per second");
}

TEST_CASE("an amount of memory below 1 MiB is refused with a suggestion") {
  CHECK(*parse_memory("0") == 0);
  CHECK(*parse_memory("1MiB") == 1u << 20);
  CHECK(*parse_memory("1048576") == 1u << 20);
  CHECK(*parse_memory("8GiB") == 8ull << 30);
  const std::pair<const char*, const char*> small[] = {
      {"1", "'1' is 1 byte: did you mean 1GiB?"},
      {"8", "'8' is 8 bytes: did you mean 8GiB?"},
      {"4096", "'4096' is 4096 bytes: did you mean 4096MiB?"},
      {"1048575", "'1048575' is 1048575 bytes: the minimum is 1MiB"},
      {"512kB", "'512kB' is 512000 bytes: the minimum is 1MiB"}};
  for (const auto& [text, said] : small) {
    INFO(text);
    REQUIRE_FALSE(parse_memory(text));
    CHECK(parse_memory(text).error().message == said);
  }
  CHECK(parse_memory("8GX").error().message == parse_size("8GX").error().message);
}

TEST_CASE("an unknown key is refused with a suggestion") {
  const std::vector<std::string_view> known{"bandwidth-to-device", "bandwidth-to-host", "highest-priority",
                                            "memory", "weight"};
  CHECK(suggestion("memmory", known) == "; did you mean 'memory'?");
  CHECK(suggestion("bandwidth_to_hosts", known) == "; did you mean 'bandwidth-to-host'?");
  CHECK(suggestion("priority", known) == "; did you mean 'highest-priority'?");
  CHECK(suggestion("mem", known) == "; did you mean 'memory'?");
  CHECK(suggestion("colour", known).empty());
  CHECK(suggestion("", known).empty());
  CHECK(suggestion(std::string(10'000, 'x'), known).empty());
}

TEST_CASE("numbers of GPUs are read and written as wholes") {
  CHECK(*parse_gpus("2") == 2000);
  CHECK(*parse_gpus("0.125") == 125);
  for (const char* const text : {"", "-1", "x", "2 GPUs", "nan", "1e10"}) {
    INFO(text);
    CHECK_FALSE(parse_gpus(text));
  }
  CHECK(milli_text(0) == "0");
  CHECK(milli_text(1010) == "1.01");
  CHECK(gpus_text(500) == "0.5 GPU");
  CHECK(gpus_text(1000) == "1 GPU");
  CHECK(gpus_text(1500) == "1.5 GPUs");
  CHECK(gpus_text(2000) == "2 GPUs");
}

TEST_CASE("size_text round-trips through parse_size") {
  CHECK(size_text(0) == "0");
  CHECK(size_text(8ull << 30) == "8GiB");
  CHECK(size_text(1500) == "1500");
  CHECK(size_text(1'500'000) == "1500kB");
  for (uint64_t bytes = 1; bytes < 1ull << 60; bytes = bytes * 3 + 1)
    CHECK(*parse_size(size_text(bytes)) == bytes);
}
