// Tests the conversion of rows between memory layout and packed form.
#include "protocol/wire/rows.h"

#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;

TEST_CASE("rows without gaps on both sides are merged into one") {
  uint64_t width = 10, rows = 3;
  wire::join_rows(width, rows, 10u, 12u);
  CHECK((width == 10 && rows == 3));
  wire::join_rows(width, rows, 10u, 10u);
  CHECK((width == 30 && rows == 1));
  wire::join_rows(width, rows, 7u);  // the pitch of a single row is irrelevant
  CHECK((width == 30 && rows == 1));
}

TEST_CASE("any part of packed rows is placed correctly and gaps are untouched") {
  constexpr uint64_t kWidth = 7, kRows = 5;
  const uint64_t pitch = kWidth + GENERATE(0u, 4u);
  std::vector<std::byte> packed(kWidth * kRows);
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::byte>(i + 1);
  for (uint64_t offset = 0; offset < packed.size(); ++offset) {
    for (uint64_t bytes = 0; bytes <= packed.size() - offset; ++bytes) {
      std::vector<std::byte> spread(pitch * kRows), back(bytes);
      wire::spread_rows(spread.data(), kWidth, pitch, offset, packed.data() + offset, bytes);
      size_t wrong = 0;
      for (uint64_t at = 0; at < spread.size(); ++at) {
        const uint64_t row = at / pitch, column = at % pitch, place = row * kWidth + column;
        const bool inside = column < kWidth && place >= offset && place < offset + bytes;
        wrong += spread[at] != (inside ? packed[place] : std::byte{});
      }
      REQUIRE(wrong == 0);
      wire::pack_rows(spread.data(), kWidth, pitch, offset, back.data(), bytes);
      REQUIRE(std::equal(back.begin(), back.end(), packed.begin() + static_cast<ptrdiff_t>(offset)));
    }
  }
}

TEST_CASE("a visitor can end the walk") {
  int visits = 0;
  CHECK_FALSE(wire::for_each_row(4, 8, 0, 16, [&](uint64_t, uint64_t, uint64_t) { return ++visits < 2; }));
  CHECK(visits == 2);
}
