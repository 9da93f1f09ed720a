// CUB's device-wide, block-wide and warp-wide algorithms.
#include <algorithm>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_histogram.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_run_length_encode.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_segmented_reduce.cuh>
#include <cub/device/device_select.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <numeric>

#include "check.h"

namespace {

constexpr int kCount = 20'000;

std::vector<uint32_t> numbers(uint32_t seed, uint32_t below = 0) {
  Random random(seed);
  std::vector<uint32_t> values(kCount);
  for (auto& value : values) value = below ? random.below(below) : random.next();
  return values;
}

// Calls a CUB function twice: first for the size of the scratch memory, then for the work.
template <typename Call>
void with_scratch(Call call) {
  size_t bytes = 0;
  OK(call(nullptr, bytes));
  Device<uint8_t> scratch(bytes + 1);
  OK(call(static_cast<void*>(scratch.get()), bytes));
}

void radix_sort() {
  auto host = numbers(1);
  std::vector<uint32_t> places(kCount);
  std::iota(places.begin(), places.end(), 0);
  Device<uint32_t> keys(host), values(places), keys_out(kCount), values_out(kCount);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(scratch, bytes, keys.get(), keys_out.get(), values.get(),
                                           values_out.get(), kCount);
  });
  std::stable_sort(places.begin(), places.end(), [&](uint32_t a, uint32_t b) { return host[a] < host[b]; });
  std::sort(host.begin(), host.end());
  CHECK(keys_out.read() == host);
  CHECK(values_out.read() == places);
  std::vector<float> reals(kCount);
  Random random(2);
  for (float& value : reals) value = random.unit() - 0.5f;
  Device<float> in(reals), out(kCount);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortKeysDescending(scratch, bytes, in.get(), out.get(), kCount);
  });
  std::sort(reals.begin(), reals.end(), std::greater<float>());
  CHECK(out.read() == reals);
}

void scan() {
  auto host = numbers(3, 1000);
  Device<uint32_t> in(host), out(kCount);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(scratch, bytes, in.get(), out.get(), kCount);
  });
  std::partial_sum(host.begin(), host.end(), host.begin());
  CHECK(out.read() == host);
}

struct Larger {
  template <typename T>
  __host__ __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

void reduce() {
  auto host = numbers(4, 1'000'000);
  Device<uint32_t> in(host), out(1);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceReduce::Reduce(scratch, bytes, in.get(), out.get(), kCount, Larger(), 0u);
  });
  CHECK(out.read()[0] == *std::max_element(host.begin(), host.end()));
  const auto least = std::min_element(host.begin(), host.end());
#if CUDART_VERSION >= 13000
  Device<int64_t> place(1);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceReduce::ArgMin(scratch, bytes, in.get(), out.get(), place.get(), int64_t{kCount});
  });
  CHECK(place.read()[0] == least - host.begin());
  CHECK(out.read()[0] == *least);
#else  // CUB 2 and older write index and value as a pair
  Device<cub::KeyValuePair<int, uint32_t>> pair(1);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceReduce::ArgMin(scratch, bytes, in.get(), pair.get(), kCount);
  });
  CHECK(pair.read()[0].key == least - host.begin());
  CHECK(pair.read()[0].value == *least);
#endif
}

void segmented_reduce() {
  auto host = numbers(5, 1000);
  std::vector<int> offsets;
  for (int at = 0; at <= kCount; at += 80) offsets.push_back(at);
  const int segments = static_cast<int>(offsets.size()) - 1;
  Device<uint32_t> in(host), out(static_cast<size_t>(segments));
  Device<int> starts(offsets);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceSegmentedReduce::Sum(scratch, bytes, in.get(), out.get(), segments, starts.get(),
                                           starts.get() + 1);
  });
  std::vector<uint32_t> expected;
  for (int s = 0; s < segments; ++s)
    expected.push_back(std::accumulate(host.begin() + offsets[static_cast<size_t>(s)],
                                       host.begin() + offsets[static_cast<size_t>(s) + 1], 0u));
  CHECK(out.read() == expected);
}

struct Small {
  __host__ __device__ bool operator()(uint32_t x) const { return x < 300; }
};

void select() {
  auto host = numbers(6, 1000);
  Device<uint32_t> in(host), out(kCount);
  Device<int> count(1);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceSelect::If(scratch, bytes, in.get(), out.get(), count.get(), kCount, Small());
  });
  std::vector<uint32_t> expected;
  std::copy_if(host.begin(), host.end(), std::back_inserter(expected), Small());
  auto got = out.read();
  CHECK(count.read()[0] == static_cast<int>(expected.size()));
  got.resize(expected.size());
  CHECK(got == expected);
}

void run_lengths() {
  auto host = numbers(7, 4);
  Device<uint32_t> in(host), values(kCount);
  Device<int> lengths(kCount), count(1);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceRunLengthEncode::Encode(scratch, bytes, in.get(), values.get(), lengths.get(),
                                              count.get(), kCount);
  });
  std::vector<uint32_t> decoded;
  const auto v = values.read();
  const auto l = lengths.read();
  for (int i = 0; i < count.read()[0]; ++i)
    decoded.insert(decoded.end(), static_cast<size_t>(l[static_cast<size_t>(i)]), v[static_cast<size_t>(i)]);
  CHECK(decoded == host);
}

void histogram() {
  Random random(8);
  std::vector<float> host(kCount);
  for (float& value : host) value = random.unit() * 100;
  Device<float> in(host);
  Device<int> out(10);
  with_scratch([&](void* scratch, size_t& bytes) {
    return cub::DeviceHistogram::HistogramEven(scratch, bytes, in.get(), out.get(), 11, 0.0f, 100.0f, kCount);
  });
  std::vector<int> expected(10);
  for (float value : host) ++expected[static_cast<size_t>(value / 10)];
  CHECK(out.read() == expected);
}

__global__ void in_block(const uint32_t* in, uint32_t* scanned, uint32_t* sorted, uint32_t* sums) {
  using Scan = cub::BlockScan<uint32_t, 128>;
  using Sort = cub::BlockRadixSort<uint32_t, 128, 4>;
  using Sum = cub::BlockReduce<uint32_t, 128>;
  using WarpSum = cub::WarpReduce<uint32_t>;
  using WarpScan = cub::WarpScan<uint32_t>;
  __shared__ union {
    Scan::TempStorage scan;
    Sort::TempStorage sort;
    Sum::TempStorage sum;
    WarpSum::TempStorage warp_sum[4];
    WarpScan::TempStorage warp_scan[4];
  } shared;
  uint32_t items[4], total;
  const uint32_t first = (blockIdx.x * 128 + threadIdx.x) * 4;
  for (int i = 0; i < 4; ++i) items[i] = in[first + i];
  uint32_t running[4];
  Scan(shared.scan).ExclusiveSum(items, running, total);
  for (int i = 0; i < 4; ++i) scanned[first + i] = running[i];
  __syncthreads();
  const uint32_t sum = Sum(shared.sum).Sum(items);
  __syncthreads();
  const uint32_t warp_sum = WarpSum(shared.warp_sum[threadIdx.x / 32]).Sum(items[0]);
  __syncthreads();
  uint32_t warp_place;
  WarpScan(shared.warp_scan[threadIdx.x / 32]).InclusiveSum(items[0], warp_place);
  __syncthreads();
  Sort(shared.sort).Sort(items);
  for (int i = 0; i < 4; ++i) sorted[first + i] = items[i];
  if (threadIdx.x == 0) {
    sums[blockIdx.x * 4] = sum;
    sums[blockIdx.x * 4 + 1] = total;
    sums[blockIdx.x * 4 + 2] = warp_sum;
  }
  if (threadIdx.x == 31) sums[blockIdx.x * 4 + 3] = warp_place;
}

void block_algorithms() {
  constexpr size_t kBlocks = 8, kItems = 512;
  auto host = numbers(9, 10'000);
  host.resize(kBlocks * kItems);
  Device<uint32_t> in(host), scanned(host.size()), sorted(host.size()), sums(kBlocks * 4);
  in_block<<<kBlocks, 128>>>(in.get(), scanned.get(), sorted.get(), sums.get());
  std::vector<uint32_t> places, expected_sums;
  for (size_t b = 0; b < kBlocks; ++b) {
    const auto begin = host.begin() + static_cast<long>(b * kItems), end = begin + kItems;
    uint32_t sum = 0, of_warp = 0;
    for (size_t i = 0; i < kItems; ++i) {
      places.push_back(sum);
      sum += begin[static_cast<long>(i)];
      if (i < 128 && i % 4 == 0) of_warp += begin[static_cast<long>(i)];
    }
    expected_sums.insert(expected_sums.end(), {sum, sum, of_warp, of_warp});
    std::sort(begin, end);
  }
  CHECK(scanned.read() == places);
  CHECK(sorted.read() == host);
  CHECK(sums.read() == expected_sums);
}

}  // namespace

int main() {
  const Case cases[] = {{"DeviceRadixSort", radix_sort}, {"DeviceScan", scan},
                        {"DeviceReduce", reduce},        {"DeviceSegmentedReduce", segmented_reduce},
                        {"DeviceSelect", select},        {"DeviceRunLengthEncode", run_lengths},
                        {"DeviceHistogram", histogram},  {"block and warp algorithms", block_algorithms}};
  return run_cases(cases);
}
