// What CUDA courses and samples are made of, each checked against the CPU.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include <algorithm>
#include <complex>
#include <cstring>
#include <numeric>

#include "check.h"

namespace cg = cooperative_groups;
namespace {

std::vector<uint32_t> numbers(size_t count, uint32_t seed, uint32_t below = 0) {
  Random random(seed);
  std::vector<uint32_t> values(count);
  for (auto& value : values) value = below ? random.below(below) : random.next();
  return values;
}
std::vector<float> reals(size_t count, uint32_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (auto& value : values) value = random.unit() * 2 - 1;
  return values;
}

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

// One block, four bits a pass; places by ballots.
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

// --- Scan in one pass: blocks wait for the sum of those before them ---

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
      while (((sum = sums[block - 1]) >> 32) == 0) {}
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

// --- FFT: radix 2 in shared memory ---

__global__ void fft_kernel(float2* data, int bits) {
  extern __shared__ float2 values[];
  const unsigned count = 1u << bits;
  data += blockIdx.x * count;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) values[__brev(i) >> (32 - bits)] = data[i];
  for (unsigned half = 1; half < count; half *= 2) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < count / 2; i += blockDim.x) {
      const unsigned k = i % half, low = (i / half) * 2 * half + k, high = low + half;
      float sine, cosine;
      sincospif(-static_cast<float>(k) / half, &sine, &cosine);
      const float2 a = values[low], b = values[high];
      const float2 t = {b.x * cosine - b.y * sine, b.x * sine + b.y * cosine};
      values[low] = {a.x + t.x, a.y + t.y};
      values[high] = {a.x - t.x, a.y - t.y};
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) data[i] = values[i];
}

void fft() {
  constexpr size_t kCount = 256;
  const auto parts = reals(2 * kCount, 5);
  std::vector<float2> host(kCount);
  for (size_t i = 0; i < kCount; ++i) host[i] = {parts[2 * i], parts[2 * i + 1]};
  Device<float2> device(host);
  fft_kernel<<<1, 128, kCount * sizeof(float2)>>>(device.get(), 8);
  const auto got = device.read();
  bool good = true;
  for (size_t k = 0; k < kCount; ++k) {
    std::complex<double> sum = 0;
    for (size_t i = 0; i < kCount; ++i)
      sum += std::complex<double>(host[i].x, host[i].y) *
             std::polar(1.0, -2 * M_PI * static_cast<double>(i * k % kCount) / kCount);
    good &= close(got[k].x, sum.real(), 1e-4) && close(got[k].y, sum.imag(), 1e-4);
  }
  CHECK(good);
}

// --- Stencil: a heat equation in two dimensions ---

__constant__ float weights[3] = {0.5f, 0.125f, 0.0f};

__global__ void heat(const float* in, float* out, int width, int height) {
  __shared__ float tile[18][18];
  const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  const auto at = [&](int px, int py) {
    px = min(max(px, 0), width - 1);
    py = min(max(py, 0), height - 1);
    return __ldg(in + py * width + px);
  };
  for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256)
    tile[i / 18][i % 18] = at(static_cast<int>(blockIdx.x * 16) + i % 18 - 1, static_cast<int>(blockIdx.y * 16) + i / 18 - 1);
  __syncthreads();
  const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
  if (x < width && y < height)
    out[y * width + x] = weights[0] * tile[ty][tx] +
                         weights[1] * (tile[ty - 1][tx] + tile[ty + 1][tx] + tile[ty][tx - 1] + tile[ty][tx + 1]);
}

void stencil() {
  const int width = 70, height = 50;
  auto host = reals(static_cast<size_t>(width * height), 6);
  Device<float> a(host), b(host.size());
  float *in = a.get(), *out = b.get();
  for (int step = 0; step < 4; ++step) {
    heat<<<dim3(5, 4), dim3(16, 16)>>>(in, out, width, height);
    std::swap(in, out);
    auto next = host;
    const auto at = [&](int x, int y) {
      return host[static_cast<size_t>(std::clamp(y, 0, height - 1) * width + std::clamp(x, 0, width - 1))];
    };
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        next[static_cast<size_t>(y * width + x)] =
            0.5f * at(x, y) + 0.125f * (at(x, y - 1) + at(x, y + 1) + at(x - 1, y) + at(x + 1, y));
    host = next;
  }
  const auto got = a.read();
  bool good = true;
  for (size_t i = 0; i < host.size(); ++i) good &= close(got[i], host[i], 1e-5);
  CHECK(good);
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

__global__ void expand(const int* offsets, const int* targets, int* levels, int level, const int* frontier, int size,
                       int* next, int* next_size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int edge = offsets[frontier[i]]; edge < offsets[frontier[i] + 1]; ++edge) {
    const int target = targets[edge];
    if (atomicCAS(&levels[target], -1, level + 1) != -1) continue;
    // One addition for all lanes that found a node.
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
  Device<int> offsets(graph.offsets), targets(graph.targets), levels(start), a(std::vector<int>(static_cast<size_t>(nodes))), b(static_cast<size_t>(nodes)), size(1);
  int *frontier = a.get(), *next = b.get(), count = 1;
  for (int level = 0; count > 0; ++level) {
    OK(cudaMemset(size.get(), 0, sizeof(int)));
    expand<<<(count + 127) / 128, 128>>>(offsets.get(), targets.get(), levels.get(), level, frontier, count, next,
                                         size.get());
    std::swap(frontier, next);
    count = size.read()[0];
  }
  CHECK(levels.read() == expected);
}

// A warp per row.
__global__ void sparse_product(const int* offsets, const int* columns, const double* values, const double* x, double* y,
                               int rows) {
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
    for (auto i = static_cast<size_t>(graph.offsets[row]); i < static_cast<size_t>(graph.offsets[row + 1]); ++i)
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

// --- Ray marching: shapes are virtual, made and destroyed on the device ---

struct Shape {
  __host__ __device__ virtual float distance(float3 p) const = 0;
  __host__ __device__ virtual ~Shape() {}
};
struct Sphere : Shape {
  float3 centre;
  float radius;
  __host__ __device__ Sphere(float3 c, float r) : centre(c), radius(r) {}
  __host__ __device__ float distance(float3 p) const override {
    const float x = p.x - centre.x, y = p.y - centre.y, z = p.z - centre.z;
    return sqrtf(x * x + y * y + z * z) - radius;
  }
};
struct Floor : Shape {
  __host__ __device__ float distance(float3 p) const override { return p.y + 1; }
};

template <typename Scene>
__host__ __device__ float march(const Scene& scene, float x, float y) {
  const float length = sqrtf(x * x + y * y + 1);
  const float3 ray = {x / length, y / length, 1 / length};
  float way = 0;
  for (int step = 0; step < 60; ++step) {
    const float3 p = {ray.x * way, ray.y * way, ray.z * way};
    float nearest = 1e9f;
    for (int i = 0; i < 3; ++i) nearest = fminf(nearest, scene[i]->distance(p));
    if (nearest < 1e-3f) return way;
    way += nearest;
    if (way > 50) break;
  }
  return 50;
}

__global__ void make_scene(Shape** scene) {
  scene[0] = new Sphere({0, 0, 5}, 1);
  scene[1] = new Sphere({1.5f, 0.2f, 6}, 0.8f);
  scene[2] = new Floor;
}
__global__ void destroy_scene(Shape** scene) {
  for (int i = 0; i < 3; ++i) delete scene[i];
}
__global__ void render(Shape** scene, float* image, int size) {
  const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  image[y * size + x] = march(scene, (x - size / 2.0f) / size, (size / 2.0f - y) / size);
}

void ray_marching() {
  const int size = 64;
  Device<Shape*> scene(3);
  Device<float> image(size * size);
  make_scene<<<1, 1>>>(scene.get());
  render<<<dim3(4, 4), dim3(16, 16)>>>(scene.get(), image.get(), size);
  destroy_scene<<<1, 1>>>(scene.get());
  const Sphere first({0, 0, 5}, 1), second({1.5f, 0.2f, 6}, 0.8f);
  const Floor ground;
  const Shape* host[] = {&first, &second, &ground};
  const auto got = image.read();
  int wrong = 0;
  for (int y = 0; y < size; ++y)
    for (int x = 0; x < size; ++x)
      wrong += !close(got[static_cast<size_t>(y * size + x)],
                      march(host, (x - size / 2.0f) / size, (size / 2.0f - y) / size), 1e-2);
  CHECK(wrong <= 8);  // rays that graze an edge
}

// --- n-body ---

__global__ void forces(const float4* bodies, float3* out, int count) {
  __shared__ float4 tile[128];
  const int i = blockIdx.x * 128 + threadIdx.x;
  const float4 me = bodies[i];
  float3 sum = {0, 0, 0};
  for (int base = 0; base < count; base += 128) {
    tile[threadIdx.x] = bodies[base + threadIdx.x];
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < 128; ++j) {
      const float x = tile[j].x - me.x, y = tile[j].y - me.y, z = tile[j].z - me.z;
      const float inverse = rsqrtf(x * x + y * y + z * z + 0.01f), pull = tile[j].w * inverse * inverse * inverse;
      sum.x += x * pull;
      sum.y += y * pull;
      sum.z += z * pull;
    }
    __syncthreads();
  }
  out[i] = sum;
}

void n_body() {
  const size_t count = 512;
  const auto parts = reals(4 * count, 10);
  std::vector<float4> bodies(count);
  for (size_t i = 0; i < count; ++i)
    bodies[i] = {parts[4 * i], parts[4 * i + 1], parts[4 * i + 2], std::fabs(parts[4 * i + 3])};
  Device<float4> device(bodies);
  Device<float3> out(count);
  forces<<<4, 128>>>(device.get(), out.get(), static_cast<int>(count));
  const auto got = out.read();
  bool good = true;
  for (size_t i = 0; i < count; ++i) {
    double sum = 0;
    for (const float4& other : bodies) {
      const double x = other.x - bodies[i].x, y = other.y - bodies[i].y, z = other.z - bodies[i].z;
      sum += x * other.w * std::pow(x * x + y * y + z * z + 0.01, -1.5);
    }
    good &= close(got[i].x, sum, 1e-3);
  }
  CHECK(good);
}

// --- Cooperative groups: one kernel, a barrier of the whole grid between its phases ---

__global__ void grid_reduce(const uint32_t* in, int count, unsigned long long* partial, unsigned long long* result) {
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
  // Everybody sees it now.
  const auto tile = cg::tiled_partition<8>(block);
  const unsigned long long largest = cg::reduce(tile, result[0] + tile.thread_rank(), cg::greater<unsigned long long>());
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

__device__ uint32_t twice(uint32_t x) { return 2 * x; }
__device__ uint32_t square(uint32_t x) { return x * x; }
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

// --- Arithmetic on the bits of integers ---

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
  const Case cases[] = {{"bitonic sort", bitonic_sort},
                        {"radix sort", radix_sort},
                        {"scan in one pass", scan},
                        {"histogram", histogram},
                        {"FFT", fft},
                        {"stencil", stencil},
                        {"breadth-first search", graph_search},
                        {"sparse matrix", sparse_matrix},
                        {"hash table", hash_table},
                        {"ray marching", ray_marching},
                        {"n-body", n_body},
                        {"grid synchronisation", grid_sync},
                        {"calls", calls},
                        {"bits of integers", integer_bits}};
  return run_cases(cases);
}
