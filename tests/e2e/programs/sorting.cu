// Sorting, scans, histograms, hash tables, graph search and sparse products as in courses and samples, each
// checked against the CPU.
#include <cooperative_groups.h>

#include <algorithm>
#include <numeric>

#include "check.h"

namespace cg = cooperative_groups;
namespace {

// --- Sorting ---

__global__ void bitonic(uint32_t* data) {
  __shared__ uint32_t tile[512];
  const uint32_t i = threadIdx.x;
  data += blockIdx.x * 512;
  tile[i] = data[i];
  tile[i + 256] = data[i + 256];
  for (uint32_t size = 2; size <= 512; size *= 2)
    for (uint32_t distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const uint32_t low = 2 * i - (i & (distance - 1)), high = low + distance;
      const bool up = (low & size) == 0;
      const uint32_t a = tile[low], b = tile[high];
      if ((a > b) == up) {
        tile[low] = b;
        tile[high] = a;
      }
    }
  __syncthreads();
  data[i] = tile[i];
  data[i + 256] = tile[i + 256];
}

void bitonic_sort() {
  auto host = numbers(8 * 512, 1);
  Device<uint32_t> device(host);
  bitonic<<<8, 256>>>(device.get());
  for (size_t at = 0; at < host.size(); at += 512)
    std::sort(host.begin() + static_cast<long>(at), host.begin() + static_cast<long>(at + 512));
  CHECK(device.read() == host);
}

// One block sorts four bits per pass and computes positions with ballots.
__global__ void radix(uint32_t* keys, uint32_t* other, int count) {
  __shared__ uint32_t starts[16], counts[16];
  for (int shift = 0; shift < 32; shift += 4) {
    if (threadIdx.x < 16) counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(&counts[keys[i] >> shift & 15], 1u);
    __syncthreads();
    if (threadIdx.x == 0)
      for (uint32_t digit = 0, sum = 0; digit < 16; ++digit) {
        starts[digit] = sum;
        sum += counts[digit];
      }
    __syncthreads();
    if (threadIdx.x < 32) {  // one warp scatters in order
      const uint32_t lane = threadIdx.x;
      for (int base = 0; base < count; base += 32) {
        const uint32_t key = keys[base + lane], digit = key >> shift & 15;
        const uint32_t same = __match_any_sync(~0u, digit);
        const uint32_t place = starts[digit] + __popc(same & ((1u << lane) - 1));
        other[place] = key;
        __syncwarp();
        if (lane == 31 - __clz(same)) starts[digit] += __popc(same);
        __syncwarp();
      }
    }
    __syncthreads();
    uint32_t* swap = keys;
    keys = other;
    other = swap;
  }
}

void radix_sort() {
  auto host = numbers(4096, 2);
  Device<uint32_t> device(host), other(host.size());
  radix<<<1, 256>>>(device.get(), other.get(), static_cast<int>(host.size()));
  std::sort(host.begin(), host.end());
  CHECK(device.read() == host);
}

// --- Scan in one pass: each block waits for the sum of the previous blocks ---

__device__ uint32_t ticket;

__global__ void chained_scan(const uint32_t* in, uint32_t* out, volatile unsigned long long* sums) {
  __shared__ uint32_t block, before;
  __shared__ uint32_t of_warp[8];
  if (threadIdx.x == 0) block = atomicAdd(&ticket, 1);
  __syncthreads();
  const uint32_t i = block * 256 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t value = in[i];
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) of_warp[warp] = value;
  __syncthreads();
  for (uint32_t w = 0; w < warp; ++w) value += of_warp[w];
  if (threadIdx.x == 255) {
    unsigned long long sum = 0;
    if (block > 0) {
      while (((sum = sums[block - 1]) >> 32) == 0) {
      }
    }
    before = static_cast<uint32_t>(sum);
    __threadfence();
    sums[block] = 1ull << 32 | (static_cast<uint32_t>(sum) + value);
  }
  __syncthreads();
  out[i] = before + value;
}

void scan() {
  auto host = numbers(64 * 256, 3, 1000);
  Device<uint32_t> in(host), out(host.size());
  Device<unsigned long long> sums(64);
  chained_scan<<<64, 256>>>(in.get(), out.get(), sums.get());
  std::partial_sum(host.begin(), host.end(), host.begin());
  CHECK(out.read() == host);
}

// --- Histogram ---

__global__ void histogram_kernel(const uint8_t* text, size_t count, uint32_t* bins) {
  __shared__ uint32_t local[256];
  local[threadIdx.x] = 0;
  __syncthreads();
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    atomicAdd(&local[text[i]], 1u);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

void histogram() {
  std::vector<uint8_t> text(100'000);
  Random random(4);
  for (auto& letter : text) letter = static_cast<uint8_t>(random.below(16) * random.below(17));
  Device<uint8_t> device(text);
  Device<uint32_t> bins(256);
  histogram_kernel<<<20, 256>>>(device.get(), text.size(), bins.get());
  std::vector<uint32_t> expected(256);
  for (uint8_t letter : text) ++expected[letter];
  CHECK(bins.read() == expected);
}

// --- Graphs and sparse matrices ---

struct Graph {
  std::vector<int> offsets{0}, targets;
  explicit Graph(int nodes) {
    Random random(7);
    for (int node = 0; node < nodes; ++node) {
      for (uint32_t n = random.below(6); n > 0; --n)
        targets.push_back(static_cast<int>(random.below(static_cast<uint32_t>(nodes))));
      offsets.push_back(static_cast<int>(targets.size()));
    }
  }
};

__global__ void expand(const int* offsets, const int* targets, int* levels, int level, const int* frontier,
                       int size, int* next, int* next_size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int edge = offsets[frontier[i]]; edge < offsets[frontier[i] + 1]; ++edge) {
    const int target = targets[edge];
    if (atomicCAS(&levels[target], -1, level + 1) != -1) continue;
    // One atomic addition for all lanes that found a node.
    const auto active = cg::coalesced_threads();
    int base;
    if (active.thread_rank() == 0) base = atomicAdd(next_size, static_cast<int>(active.size()));
    next[active.shfl(base, 0) + static_cast<int>(active.thread_rank())] = target;
  }
}

void graph_search() {
  const int nodes = 5000;
  const Graph graph(nodes);
  std::vector<int> expected(static_cast<size_t>(nodes), -1), queue{0};
  expected[0] = 0;
  for (size_t at = 0; at < queue.size(); ++at) {
    const auto node = static_cast<size_t>(queue[at]);
    for (int edge = graph.offsets[node]; edge < graph.offsets[node + 1]; ++edge) {
      const int target = graph.targets[static_cast<size_t>(edge)];
      if (expected[static_cast<size_t>(target)] != -1) continue;
      expected[static_cast<size_t>(target)] = expected[node] + 1;
      queue.push_back(target);
    }
  }
  std::vector<int> start(static_cast<size_t>(nodes), -1);
  start[0] = 0;
  Device<int> offsets(graph.offsets), targets(graph.targets), levels(start),
      a(std::vector<int>(static_cast<size_t>(nodes))), b(static_cast<size_t>(nodes)), size(1);
  int *frontier = a.get(), *next = b.get(), count = 1;
  for (int level = 0; count > 0; ++level) {
    OK(cudaMemset(size.get(), 0, sizeof(int)));
    expand<<<(count + 127) / 128, 128>>>(offsets.get(), targets.get(), levels.get(), level, frontier, count,
                                         next, size.get());
    std::swap(frontier, next);
    count = size.read()[0];
  }
  CHECK(levels.read() == expected);
}

// One warp per row.
__global__ void sparse_product(const int* offsets, const int* columns, const double* values, const double* x,
                               double* y, int rows) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  double sum = 0;
  for (int i = offsets[row] + lane; i < offsets[row + 1]; i += 32) sum += values[i] * x[columns[i]];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (lane == 0) y[row] = sum;
}

void sparse_matrix() {
  const int rows = 3000;
  const Graph graph(rows);
  const auto weights_f = reals(graph.targets.size(), 8), x_f = reals(static_cast<size_t>(rows), 9);
  const std::vector<double> values(weights_f.begin(), weights_f.end()), x(x_f.begin(), x_f.end());
  Device<int> offsets(graph.offsets), columns(graph.targets);
  Device<double> v(values), dx(x), y(static_cast<size_t>(rows));
  sparse_product<<<(rows + 3) / 4, 128>>>(offsets.get(), columns.get(), v.get(), dx.get(), y.get(), rows);
  const auto got = y.read();
  bool good = true;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    double sum = 0;
    for (auto i = static_cast<size_t>(graph.offsets[row]); i < static_cast<size_t>(graph.offsets[row + 1]);
         ++i)
      sum += values[i] * x[static_cast<size_t>(graph.targets[i])];
    good &= close(got[row], sum, 1e-12);
  }
  CHECK(good);
}

// --- A hash table with open addressing ---

constexpr uint32_t kSlots = 1 << 14, kEmpty = ~0u;

__device__ uint32_t hash_of(uint32_t key) {
  key ^= key >> 16;
  key *= 0x85EBCA6B;
  key ^= key >> 13;
  return key & (kSlots - 1);
}
__global__ void insert(unsigned long long* table, const uint32_t* keys, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const unsigned long long entry = static_cast<unsigned long long>(keys[i]) << 32 | static_cast<uint32_t>(i);
  for (uint32_t slot = hash_of(keys[i]);; slot = (slot + 1) & (kSlots - 1))
    if (atomicCAS(&table[slot], ~0ull, entry) == ~0ull) return;
}
__global__ void look_up(const unsigned long long* table, const uint32_t* keys, uint32_t* found, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  found[i] = kEmpty;
  for (uint32_t slot = hash_of(keys[i]); table[slot] != ~0ull; slot = (slot + 1) & (kSlots - 1))
    if (table[slot] >> 32 == keys[i]) found[i] = static_cast<uint32_t>(table[slot]);
}

void hash_table() {
  std::vector<uint32_t> keys(10'000);
  for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = i * 2654435761u;  // distinct
  Device<unsigned long long> table(kSlots);
  OK(cudaMemset(table.get(), 0xFF, kSlots * 8));
  Device<uint32_t> device(keys), found(keys.size());
  const int count = static_cast<int>(keys.size());
  insert<<<40, 256>>>(table.get(), device.get(), count);
  look_up<<<40, 256>>>(table.get(), device.get(), found.get(), count);
  std::vector<uint32_t> expected(keys.size());
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(found.read() == expected);
}

}  // namespace

int main() {
  const Case cases[] = {{"bitonic sort", bitonic_sort},
                        {"radix sort", radix_sort},
                        {"scan in one pass", scan},
                        {"histogram", histogram},
                        {"breadth-first search", graph_search},
                        {"sparse matrix", sparse_matrix},
                        {"hash table", hash_table}};
  return run_cases(cases);
}
