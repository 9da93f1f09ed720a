// Tests the division of a copy's rows into bulk copies: each byte once, in order, and within the limits of
// one bulk copy.
#include "client/copies/bulk_parts.h"

#include <vector>

#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

std::vector<BulkPart> parts_of(const Rows& rows) {
  std::vector<BulkPart> parts;
  size_t last = 0;
  CHECK(for_each_bulk_part(rows, [&](const BulkPart& part, bool is_last) {
          parts.push_back(part);
          last += is_last;
          return CUDA_SUCCESS;
        }) == CUDA_SUCCESS);
  CHECK(last == (parts.empty() ? 0u : 1u));
  return parts;
}

// Checks that the parts cover the rows from the first byte to the last, with the right offsets on both sides.
void check_cover(const Rows& rows, const std::vector<BulkPart>& parts) {
  uint64_t row = 0, column = 0;
  for (const BulkPart& part : parts) {
    INFO("row " << row << ", column " << column);
    REQUIRE(part.rows >= 1);
    CHECK(part.width * part.rows <= wire::kMaxBulkCopyBytes);
    CHECK(part.host == row * rows.host_pitch + column);
    CHECK(part.device == row * rows.device_pitch + column);
    if (part.rows > 1 || part.width == rows.width) {
      CHECK(column == 0);
      CHECK(part.width == rows.width);
      row += part.rows;
    } else {
      column += part.width;
      REQUIRE(column <= rows.width);
      if (column == rows.width) ++row, column = 0;
    }
  }
  CHECK(row == rows.count);
  CHECK(column == 0);
}

}  // namespace

TEST_CASE("transfer plan: merges rows without gaps on both sides into one row") {
  const Rows joined = make_rows(100, 7, 100, 100);
  CHECK(joined.width == 700);
  CHECK(joined.count == 1);
  CHECK(joined.host_pitch == 700);
  CHECK(joined.device_pitch == 700);
}

TEST_CASE("transfer plan: rows with a gap on one side stay separate rows") {
  for (const auto& [host, device] : {std::pair{128, 100}, std::pair{100, 128}}) {
    const Rows rows = make_rows(100, 7, static_cast<uint64_t>(host), static_cast<uint64_t>(device));
    CHECK(rows.width == 100);
    CHECK(rows.count == 7);
    CHECK(rows.host_pitch == static_cast<uint64_t>(host));
    CHECK(rows.device_pitch == static_cast<uint64_t>(device));
  }
}

TEST_CASE("transfer plan: one row has no pitch") {
  const Rows row = make_rows(100, 1, 4096, 8192);
  CHECK(row.host_pitch == 100);
  CHECK(row.device_pitch == 100);
}

TEST_CASE("transfer plan: parts cover all rows within the limits of a bulk copy") {
  const uint64_t most = wire::kMaxBulkCopyBytes, chunk = wire::kBulkChunkBytes;
  const Rows rows =
      GENERATE_COPY(Rows{1, 1, 1, 1}, Rows{most, 1, most, most}, Rows{most + 1, 1, most + 1, most + 1},
                    Rows{3 * most - 5, 1, 3 * most - 5, 3 * most - 5}, Rows{100, 3, 128, 256},
                    Rows{chunk, 3 * (most / chunk) + 1, chunk + 512, chunk},
                    Rows{chunk + 1, 5, chunk + 512, 2 * chunk}, Rows{most + 7, 3, 2 * most, most + 7});
  check_cover(rows, parts_of(rows));
}

TEST_CASE("transfer plan: sends many short rows together") {
  const uint64_t chunk = wire::kBulkChunkBytes;
  CHECK(parts_of({chunk, wire::kMaxBulkCopyBytes / chunk, 2 * chunk, chunk}).size() == 1);
}

TEST_CASE("transfer plan: an error stops the copy at its part") {
  int parts = 0;
  CHECK(for_each_bulk_part(
            {wire::kBulkChunkBytes + 1, 5, wire::kBulkChunkBytes + 1, wire::kBulkChunkBytes + 1},
            [&](const BulkPart&, bool) { return ++parts == 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS; }) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(parts == 2);
}
