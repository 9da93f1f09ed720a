// Thrust algorithms, checked against the standard library.
#include <thrust/adjacent_difference.h>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/functional.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>
#include <thrust/transform_scan.h>
#include <thrust/unique.h>

#include <algorithm>
#include <numeric>

#include "check.h"

namespace {

constexpr size_t kCount = 20'000;

std::vector<uint32_t> numbers(uint32_t seed, uint32_t below = 0) {
  Random random(seed);
  std::vector<uint32_t> values(kCount);
  for (auto& value : values) value = below ? random.below(below) : random.next();
  return values;
}

template <typename T>
std::vector<T> to_host(const thrust::device_vector<T>& vector, size_t count) {
  std::vector<T> values(count);
  thrust::copy_n(vector.begin(), count, values.begin());
  return values;
}
template <typename T>
std::vector<T> to_host(const thrust::device_vector<T>& vector) {
  return to_host(vector, vector.size());
}

struct Square {
  __host__ __device__ uint64_t operator()(uint32_t x) const { return uint64_t{x} * x; }
};
struct IsOdd {
  __host__ __device__ bool operator()(uint32_t x) const { return x & 1; }
};
struct ByLastDigit {  // a custom comparison: merge sort instead of radix sort
  __host__ __device__ bool operator()(uint32_t a, uint32_t b) const { return a % 10 < b % 10; }
};

void sort_keys() {
  auto host = numbers(1);
  thrust::device_vector<uint32_t> device(host.begin(), host.end());
  thrust::sort(device.begin(), device.end());
  std::sort(host.begin(), host.end());
  CHECK(to_host(device) == host);
}

void stable_sort_by_key() {
  auto keys = numbers(2, 5000);
  thrust::device_vector<uint32_t> device(keys.begin(), keys.end()), places(kCount);
  thrust::sequence(places.begin(), places.end());
  thrust::stable_sort_by_key(device.begin(), device.end(), places.begin(), ByLastDigit());
  std::vector<uint32_t> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0);
  std::stable_sort(expected.begin(), expected.end(),
                   [&](uint32_t a, uint32_t b) { return keys[a] % 10 < keys[b] % 10; });
  CHECK(to_host(places) == expected);
}

void reduce_by_key() {
  auto keys = numbers(3, 300), values = numbers(4, 1000);
  std::sort(keys.begin(), keys.end());
  thrust::device_vector<uint32_t> k(keys.begin(), keys.end()), v(values.begin(), values.end()),
      keys_out(kCount), sums(kCount);
  auto end = thrust::reduce_by_key(k.begin(), k.end(), v.begin(), keys_out.begin(), sums.begin());
  std::vector<uint32_t> expected_keys, expected_sums;
  for (size_t i = 0; i < kCount; ++i) {
    if (i == 0 || keys[i] != keys[i - 1]) {
      expected_keys.push_back(keys[i]);
      expected_sums.push_back(0);
    }
    expected_sums.back() += values[i];
  }
  CHECK(static_cast<size_t>(end.first - keys_out.begin()) == expected_keys.size());
  CHECK(to_host(keys_out, expected_keys.size()) == expected_keys);
  CHECK(to_host(sums, expected_sums.size()) == expected_sums);
}

void scans() {
  auto host = numbers(5, 1000);
  thrust::device_vector<uint32_t> in(host.begin(), host.end());
  thrust::device_vector<uint64_t> out(kCount);
  thrust::transform_inclusive_scan(in.begin(), in.end(), out.begin(), Square(), thrust::plus<uint64_t>());
  std::vector<uint64_t> expected(kCount);
  uint64_t sum = 0;
  for (size_t i = 0; i < kCount; ++i) expected[i] = sum += uint64_t{host[i]} * host[i];
  CHECK(to_host(out) == expected);
  thrust::exclusive_scan(in.begin(), in.end(), out.begin(), uint64_t{7});
  sum = 7;
  for (size_t i = 0; i < kCount; ++i) {
    expected[i] = sum;
    sum += host[i];
  }
  CHECK(to_host(out) == expected);
}

void reductions() {
  auto host = numbers(6, 60'000);  // squares fit into 32 bits
  thrust::device_vector<uint32_t> in(host.begin(), host.end());
  CHECK(thrust::reduce(in.begin(), in.end(), uint64_t{0}) ==
        std::accumulate(host.begin(), host.end(), uint64_t{0}));
  CHECK(thrust::transform_reduce(in.begin(), in.end(), Square(), uint64_t{0}, thrust::plus<uint64_t>()) ==
        std::inner_product(host.begin(), host.end(), host.begin(), uint64_t{0}));
  CHECK(thrust::inner_product(in.begin(), in.end(), in.begin(), uint64_t{0}) ==
        std::inner_product(host.begin(), host.end(), host.begin(), uint64_t{0}));
  CHECK(thrust::count_if(in.begin(), in.end(), IsOdd()) == std::count_if(host.begin(), host.end(), IsOdd()));
  const auto extremes = thrust::minmax_element(in.begin(), in.end());
  const auto expected = std::minmax_element(host.begin(), host.end());
  CHECK(*extremes.first == *expected.first);
  CHECK(*extremes.second == *expected.second);
}

void compaction() {
  auto host = numbers(7, 40);
  thrust::device_vector<uint32_t> device(host.begin(), host.end()), odd(kCount);
  const auto odd_end = thrust::copy_if(device.begin(), device.end(), odd.begin(), IsOdd());
  std::vector<uint32_t> expected;
  std::copy_if(host.begin(), host.end(), std::back_inserter(expected), IsOdd());
  CHECK(static_cast<size_t>(odd_end - odd.begin()) == expected.size());
  CHECK(to_host(odd, expected.size()) == expected);
  thrust::device_vector<uint32_t> parted = device;
  thrust::stable_partition(parted.begin(), parted.end(), IsOdd());
  auto host_parted = host;
  std::stable_partition(host_parted.begin(), host_parted.end(), IsOdd());
  CHECK(to_host(parted) == host_parted);
  const auto end = thrust::unique(device.begin(), device.end());
  host.erase(std::unique(host.begin(), host.end()), host.end());
  CHECK(static_cast<size_t>(end - device.begin()) == host.size());
  CHECK(to_host(device, host.size()) == host);
}

void sets_and_searches() {
  auto a = numbers(8, 60'000), b = numbers(9, 60'000);
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  thrust::device_vector<uint32_t> da(a.begin(), a.end()), db(b.begin(), b.end()), out(2 * kCount);
  const auto end = thrust::set_intersection(da.begin(), da.end(), db.begin(), db.end(), out.begin());
  std::vector<uint32_t> expected;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
  CHECK(static_cast<size_t>(end - out.begin()) == expected.size());
  CHECK(to_host(out, expected.size()) == expected);
  thrust::merge(da.begin(), da.end(), db.begin(), db.end(), out.begin());
  std::vector<uint32_t> merged(2 * kCount), places(kCount);
  std::merge(a.begin(), a.end(), b.begin(), b.end(), merged.begin());
  CHECK(to_host(out) == merged);
  thrust::device_vector<uint32_t> found(kCount);
  thrust::lower_bound(da.begin(), da.end(), db.begin(), db.end(), found.begin());
  for (size_t i = 0; i < kCount; ++i)
    places[i] = static_cast<uint32_t>(std::lower_bound(a.begin(), a.end(), b[i]) - a.begin());
  CHECK(to_host(found) == places);
}

void fancy_iterators() {
  auto squares = thrust::make_transform_iterator(thrust::make_counting_iterator(0u), Square());
  CHECK(thrust::reduce(squares, squares + 1000, uint64_t{0}) == 332'833'500);
  auto host = numbers(10, 1000);
  thrust::device_vector<uint32_t> a(host.begin(), host.end()), b(kCount), differences(kCount);
  thrust::sequence(b.begin(), b.end());
  auto pairs = thrust::make_zip_iterator(thrust::make_tuple(a.begin(), b.begin()));
  thrust::sort(pairs, pairs + kCount);
  std::vector<std::pair<uint32_t, uint32_t>> expected(kCount);
  for (uint32_t i = 0; i < kCount; ++i) expected[i] = {host[i], i};
  std::sort(expected.begin(), expected.end());
  const auto first = to_host(a), second = to_host(b);
  bool same = true;
  for (size_t i = 0; i < kCount; ++i)
    same &= first[i] == expected[i].first && second[i] == expected[i].second;
  CHECK(same);
  thrust::adjacent_difference(a.begin(), a.end(), differences.begin());
  std::vector<uint32_t> steps(kCount);
  std::adjacent_difference(first.begin(), first.end(), steps.begin());
  CHECK(to_host(differences) == steps);
}

}  // namespace

int main() {
  const Case cases[] = {{"sort", sort_keys},
                        {"stable_sort_by_key", stable_sort_by_key},
                        {"reduce_by_key", reduce_by_key},
                        {"scans", scans},
                        {"reductions", reductions},
                        {"compaction", compaction},
                        {"sets and searches", sets_and_searches},
                        {"fancy iterators", fancy_iterators}};
  return run_cases(cases);
}
