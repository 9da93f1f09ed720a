// The sent bytes that a connection keeps until they are acknowledged.
#include "protocol/transport/resume/kept_bytes.h"

#include <algorithm>

#include "tests/protocol/transport/contract.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::transport;
using namespace gpupool::transport::contract;

namespace {

std::vector<std::byte> text_of(const KeptBytes& kept, uint64_t position) {
  std::vector<std::byte> bytes;
  while (position < kept.end()) {
    for (const iovec& part : kept.from(position, 3)) {
      const auto* from = static_cast<const std::byte*>(part.iov_base);
      bytes.insert(bytes.end(), from, from + part.iov_len);
      position += part.iov_len;
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("kept bytes are those from the last acknowledgement on") {
  KeptBytes kept(1u << 20);
  const auto bytes = pattern(300'000, 1);
  const iovec parts[] = {{const_cast<std::byte*>(bytes.data()), 100'000},
                         {nullptr, 0},
                         {const_cast<std::byte*>(bytes.data()) + 100'000, 200'000}};
  kept.append(parts, 250'000);
  CHECK(kept.end() == 250'000);
  CHECK(kept.size() == 250'000);
  const auto tail = [&](size_t from, size_t to) {
    return std::vector(bytes.begin() + static_cast<long>(from), bytes.begin() + static_cast<long>(to));
  };
  CHECK(text_of(kept, 0) == tail(0, 250'000));
  CHECK(text_of(kept, 65'535) == tail(65'535, 250'000));
  for (const size_t position : {size_t{1}, size_t{65'536}, size_t{70'000}, size_t{70'000}, size_t{60'000}}) {
    kept.drop_before(position);
  }
  CHECK_FALSE(kept.holds(69'999));
  CHECK(kept.holds(70'000));
  CHECK(kept.holds(250'000));
  CHECK_FALSE(kept.holds(250'001));
  CHECK(text_of(kept, 70'000) == tail(70'000, 250'000));
  kept.drop_before(250'000);
  CHECK(kept.size() == 0);
  const iovec rest{const_cast<std::byte*>(bytes.data()) + 250'000, 50'000};
  kept.append({&rest, 1}, 50'000);
  CHECK(text_of(kept, 250'000) == tail(250'000, 300'000));
}

TEST_CASE("more unacknowledged bytes than are kept make a position before the end useless") {
  KeptBytes kept(100'000);
  const auto bytes = pattern(100'001, 1);
  const iovec part = as_iovec(bytes);
  kept.append({&part, 1}, 60'000);
  kept.append({&part, 1}, 40'001);
  CHECK(kept.end() == 100'001);
  CHECK(kept.size() == 0);
  CHECK_FALSE(kept.holds(100'000));
  CHECK(kept.holds(100'001));
  kept.append({&part, 1}, 100'000);  // fits again
  CHECK(kept.holds(100'001));
  CHECK(text_of(kept, 100'001) == std::vector(bytes.begin(), bytes.end() - 1));
  kept.append({&part, 1}, 100'001);
  CHECK_FALSE(kept.holds(200'001));
  CHECK(kept.holds(300'002));
}

TEST_CASE("lent memory is not copied until it is taken back") {
  KeptBytes kept(1u << 20);
  auto lent = pattern(100'000, 1);
  const auto before = pattern(100, 2);
  const iovec parts[] = {as_iovec(before), as_iovec(lent)};
  kept.lend(lent);
  kept.append(parts, 100'000);  // the last 100 bytes were not accepted
  const iovec rest{lent.data() + 99'900, 100};
  kept.append({&rest, 1}, 100);
  kept.drop_before(1'100);
  auto expected = std::vector(lent.begin() + 1'000, lent.end());
  CHECK(text_of(kept, 1'100) == expected);
  lent[50'000] ^= std::byte{1};
  CHECK(text_of(kept, 1'100) != expected);  // it is the memory itself
  lent[50'000] ^= std::byte{1};
  kept.take_back(before);  // other memory
  lent[50'000] ^= std::byte{1};
  CHECK(text_of(kept, 1'100) != expected);
  lent[50'000] ^= std::byte{1};
  kept.take_back(std::span(lent).subspan(99'000));
  std::fill(lent.begin(), lent.end(), std::byte{0});
  CHECK(text_of(kept, 1'100) == expected);
  kept.drop_before(kept.end());
  CHECK(text_of(kept, kept.end()).empty());
}
