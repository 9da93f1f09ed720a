// Language features: grid-wide barriers, function pointers, recursion, local arrays and bit arithmetic, each
// checked against the CPU.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include <algorithm>
#include <numeric>

#include "check.h"

namespace cg = cooperative_groups;
namespace {

// --- Cooperative groups: a kernel with grid-wide barriers between its phases ---

__global__ void grid_reduce(const uint32_t* in, int count, unsigned long long* partial,
                            unsigned long long* result) {
  const auto grid = cg::this_grid();
  const auto block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  __shared__ unsigned long long sums[8];
  unsigned long long sum = 0;
  for (unsigned long long i = grid.thread_rank(); i < count; i += grid.size()) sum += in[i];
  sum = cg::reduce(warp, sum, cg::plus<unsigned long long>());
  if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = sum;
  block.sync();
  if (block.thread_rank() == 0) {
    sum = 0;
    for (unsigned w = 0; w < warp.meta_group_size(); ++w) sum += sums[w];
    partial[blockIdx.x] = sum;
  }
  grid.sync();
  if (grid.thread_rank() == 0) {
    sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];
    result[0] = sum;
  }
  grid.sync();
  // The result is now visible to all threads.
  const auto tile = cg::tiled_partition<8>(block);
  const unsigned long long largest =
      cg::reduce(tile, result[0] + tile.thread_rank(), cg::greater<unsigned long long>());
  if (tile.any(largest != result[0] + 7)) result[1] = 1;
}

void grid_sync() {
  const auto host = numbers(50'000, 11, 100'000);
  Device<uint32_t> in(host);
  int blocks = 0, device = 0, processors = 0, count = static_cast<int>(host.size());
  OK(cudaGetDevice(&device));
  OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, grid_reduce, 256, 0));
  blocks = std::min(blocks * processors, 12);
  Device<unsigned long long> partial(static_cast<size_t>(blocks)), result(2);
  const uint32_t* in_pointer = in.get();
  unsigned long long *partial_pointer = partial.get(), *result_pointer = result.get();
  void* arguments[] = {&in_pointer, &count, &partial_pointer, &result_pointer};
  OK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(grid_reduce), blocks, 256, arguments));
  CHECK(result.read()[0] == std::accumulate(host.begin(), host.end(), 0ull));
  CHECK(result.read()[1] == 0);
}

// --- Function pointers, recursion, local arrays ---

__device__ uint32_t twice(uint32_t x) {
  return 2 * x;
}
__device__ uint32_t square(uint32_t x) {
  return x * x;
}
using Step = uint32_t (*)(uint32_t);
__device__ Step steps[] = {twice, square};

__device__ __noinline__ uint32_t ackermann(uint32_t m, uint32_t n) {
  if (m == 0) return n + 1;
  return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
__global__ void pointers(uint32_t* out, int which) {
  uint32_t local[16];
  for (uint32_t i = 0; i < 16; ++i) local[i] = steps[(i + which) & 1](i);
  out[threadIdx.x] = local[threadIdx.x & 15] + ackermann(2, threadIdx.x & 3);
}

void calls() {
  Device<uint32_t> out(32);
  pointers<<<1, 32>>>(out.get(), 1);
  const auto got = out.read();
  bool good = true;
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t n = i & 15, expected = (n + 1) & 1 ? n * n : 2 * n;
    good &= got[i] == expected + 2 * (i & 3) + 3;
  }
  CHECK(good);
}

// --- Bit arithmetic on integers ---

__global__ void bits(const uint32_t* in, uint32_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint32_t x = in[i], y = in[count - 1 - i];
  uint32_t r = __byte_perm(x, y, 0x5140) ^ __funnelshift_l(x, y, i & 31) ^ __umulhi(x, y);
  r += __dp4a(static_cast<int>(x), static_cast<int>(y), i) + __vabsdiffu4(x, y) + __usad(x, y, r);
  r ^= __vadd2(x, y) + __brev(x) + __ffs(static_cast<int>(y)) + __vmaxs2(x, y);
  const unsigned __int128 wide = static_cast<unsigned __int128>(x) * y * r * x + y;
  out[i] = r ^ static_cast<uint32_t>(wide >> 64) ^ static_cast<uint32_t>(wide / (y | 1));
}

void integer_bits() {
  const auto host = numbers(1000, 12);
  Device<uint32_t> in(host), out(host.size());
  bits<<<8, 128>>>(in.get(), out.get(), 1000);
  const auto got = out.read();
  bool good = true;
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint32_t x = host[i], y = host[999 - i];
    const auto byte = [](uint32_t v, int n) { return v >> 8 * n & 255; };
    const uint64_t both = uint64_t{y} << 32 | x;
    uint32_t r = byte(x, 0) | byte(y, 0) << 8 | byte(x, 1) << 16 | byte(y, 1) << 24;
    r ^= static_cast<uint32_t>(both << (i & 31) >> 32) ^ static_cast<uint32_t>(uint64_t{x} * y >> 32);
    int32_t dot = static_cast<int32_t>(i);
    uint32_t distance = 0, sum = 0, larger = 0, reversed = 0;
    for (int n = 0; n < 4; ++n) {
      dot += static_cast<int8_t>(byte(x, n)) * static_cast<int8_t>(byte(y, n));
      distance |= (byte(x, n) > byte(y, n) ? byte(x, n) - byte(y, n) : byte(y, n) - byte(x, n)) << 8 * n;
    }
    for (int n = 0; n < 2; ++n) {
      const uint32_t a = x >> 16 * n & 0xFFFF, b = y >> 16 * n & 0xFFFF;
      sum |= ((a + b) & 0xFFFF) << 16 * n;
      larger |= (static_cast<int16_t>(a) > static_cast<int16_t>(b) ? a : b) << 16 * n;
    }
    for (int n = 0; n < 32; ++n) reversed |= (x >> n & 1) << (31 - n);
    r += static_cast<uint32_t>(dot) + distance + ((x > y ? x - y : y - x) + r);
    r ^= sum + reversed + static_cast<uint32_t>(__builtin_ffs(static_cast<int>(y))) + larger;
    const unsigned __int128 wide = static_cast<unsigned __int128>(x) * y * r * x + y;
    good &= got[i] == (r ^ static_cast<uint32_t>(wide >> 64) ^ static_cast<uint32_t>(wide / (y | 1)));
  }
  CHECK(good);
}

}  // namespace

int main() {
  const Case cases[] = {
      {"grid synchronisation", grid_sync}, {"calls", calls}, {"bits of integers", integer_bits}};
  return run_cases(cases);
}
