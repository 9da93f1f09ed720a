// Tests which bytes each role of device addresses asks for, and that overflows are rejected.
#include <limits>
#include <utility>
#include <vector>

#include "protocol/calls/codec.h"
#include "tests/support/catch.h"

namespace {

using namespace gpupool;
using namespace gpupool::cuda;
using namespace gpupool::cuda::role;

using Range = std::pair<uint64_t, uint64_t>;
constexpr size_t kMost = std::numeric_limits<size_t>::max();

// Records the ranges that a row asks for.
struct RangeRecorder {
  bool mine = true;
  mutable std::vector<Range> owned{}, within{};
  bool owns(uint64_t address, uint64_t size) const {
    owned.emplace_back(address, size);
    return mine;
  }
  bool in_range(uint64_t address, uint64_t size) const {
    within.emplace_back(address, size);
    return mine;
  }
};
struct Nothing {};

int calls = 0;

template <class... A>
CUresult count_call(A...) {
  ++calls;
  return CUDA_SUCCESS;
}

// Executes a row with these arguments as a worker does. Returns its result; counts the driver's calls.
template <class... Roles, class... A>
CUresult execute(const RangeRecorder& memory, A... arguments) {
  using Row = cuda::Row<CUresult (*)(A...), Roles...>;
  Nothing nothing;
  wire::Buffer request, reply;
  wire::Writer writer(request), reply_writer(reply);
  Row::write_request(writer, {arguments...}, nothing);
  wire::Reader reader(request);
  calls = 0;
  const auto result = Row::execute(&count_call<A...>, reader, reply_writer, nothing, memory);
  REQUIRE(result.has_value());
  CHECK(calls == (*result == CUDA_SUCCESS ? 1 : 0));
  return *result;
}

constexpr CUdeviceptr kAddress = 0x7000;

}  // namespace

TEST_CASE("a device address needs its fixed number of bytes") {
  RangeRecorder memory;
  CHECK(execute<device_address<8>>(memory, kAddress) == CUDA_SUCCESS);
  CHECK(memory.owned == std::vector<Range>{{kAddress, 8}});
  memory.mine = false;
  CHECK(execute<device_address<8>>(memory, kAddress) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a device range needs as many items as its parameter says") {
  RangeRecorder memory;
  CHECK(execute<device_range<1>, value>(memory, kAddress, size_t{3}) == CUDA_SUCCESS);
  CHECK(execute<device_range<1, 4>, value>(memory, kAddress, size_t{3}) == CUDA_SUCCESS);
  CHECK(memory.owned == std::vector<Range>{{kAddress, 3}, {kAddress, 12}});
  CHECK(execute<device_range<1, 4>, value>(memory, kAddress, kMost / 4 + 1) == CUDA_ERROR_INVALID_VALUE);
  memory.mine = false;
  CHECK(execute<device_range<1>, value>(memory, kAddress, size_t{3}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(execute<device_range<1>, value>(memory, CUdeviceptr{0}, size_t{3}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(execute<device_range<1>, value>(memory, kAddress, size_t{0}) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a device range that may be null needs memory unless it is null") {
  RangeRecorder memory{false};
  CHECK(execute<device_range_or_null<1>, value>(memory, CUdeviceptr{0}, size_t{3}) == CUDA_SUCCESS);
  CHECK(memory.owned.empty());
  CHECK(execute<device_range_or_null<1>, value>(memory, kAddress, size_t{3}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(memory.owned == std::vector<Range>{{kAddress, 3}});
}

TEST_CASE("device rows need the bytes from the first to the last") {
  const auto fill = [](const RangeRecorder& memory, size_t pitch, size_t width, size_t rows) {
    return execute<device_rows<1, 2, 3, 4>, value, value, value>(memory, kAddress, pitch, width, rows);
  };
  RangeRecorder memory;
  CHECK(fill(memory, 100, 5, 3) == CUDA_SUCCESS);
  CHECK(memory.owned == std::vector<Range>{{kAddress, 2 * 100 + 5 * 4}});
  CHECK(fill(memory, 100, kMost / 4 + 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fill(memory, kMost / 2, 1, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fill(memory, kMost, 1, 2) == CUDA_ERROR_INVALID_VALUE);
  memory.mine = false;
  CHECK(fill(memory, 100, 5, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fill(memory, 100, 0, 3) == CUDA_SUCCESS);
  CHECK(fill(memory, 100, 5, 0) == CUDA_SUCCESS);
}

TEST_CASE("session addresses need to be in the session's range, mapped or not") {
  RangeRecorder memory;
  CHECK(execute<session_address>(memory, kAddress) == CUDA_SUCCESS);
  CHECK(execute<session_range<1>, value>(memory, kAddress, size_t{3}) == CUDA_SUCCESS);
  CHECK(memory.within == std::vector<Range>{{kAddress, 1}, {kAddress, 3}});
  CHECK(memory.owned.empty());
  memory.mine = false;
  CHECK(execute<session_address>(memory, kAddress) == CUDA_ERROR_INVALID_VALUE);
  CHECK(execute<session_range<1>, value>(memory, kAddress, size_t{3}) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a row checks all of its addresses") {
  RangeRecorder memory;
  CHECK(execute<device_range<2>, device_range<2>, value>(memory, kAddress, CUdeviceptr{0x9000}, size_t{3}) ==
        CUDA_SUCCESS);
  CHECK(memory.owned == std::vector<Range>{{kAddress, 3}, {0x9000, 3}});
}
