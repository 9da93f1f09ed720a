// Ordinary CUDA C++ for kernel_test.cc, which checks what each kernel writes to memory.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>

#include <cassert>
#include <cstdio>

namespace cg = cooperative_groups;

struct Shape {
  __device__ virtual int area(int scale) const = 0;
};
struct Square : Shape {
  int side;
  __device__ Square(int s) : side(s) {}
  __device__ int area(int scale) const override { return side * side * scale; }
};
struct Strip : Shape {
  int length;
  __device__ Strip(int l) : length(l) {}
  __device__ int area(int scale) const override { return length * scale + 1; }
};
struct Box {
  float weight[5];
  int count;
};

__constant__ float table[4] = {1, 2, 4, 8};
__device__ int calls;
__device__ __noinline__ int ackermann(int m, int n) {
  return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
__device__ __noinline__ int plus_one(int x) {
  return x + 1;
}
__device__ __noinline__ int times_two(int x) {
  return x * 2;
}
__device__ int (*operations[2])(int) = {plus_one, times_two};

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void multiply(const float* a, const float* b, float* c, int n) {
  __shared__ float left[8][8], right[8][8];
  int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  float sum = 0;
  for (int k = 0; k < n; k += 8) {
    left[threadIdx.y][threadIdx.x] = a[y * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + x];
    __syncthreads();
    for (int j = 0; j < 8; ++j) sum += left[threadIdx.y][j] * right[j][threadIdx.x];
    __syncthreads();
  }
  c[y * n + x] = sum;
}

extern "C" __global__ void reduce(const int* values, int n, int* sum, int* largest) {
  int total = 0, most = INT_MIN;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    total += values[i];
    most = max(most, values[i]);
  }
  for (int d = 16; d; d /= 2) total += __shfl_down_sync(~0u, total, d);
  __shared__ int warps[32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x < 32) {
    total = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    for (int d = 16; d; d /= 2) total += __shfl_xor_sync(~0u, total, d);
    if (threadIdx.x == 0) atomicAdd(sum, total);
  }
  atomicMax(largest, most);
}

extern "C" __global__ void scan(int* values, int n) {
  extern __shared__ int buffer[];
  buffer[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  for (int d = 1; d < n; d *= 2) {
    int other = threadIdx.x >= d ? buffer[threadIdx.x - d] : 0;
    __syncthreads();
    buffer[threadIdx.x] += other;
    __syncthreads();
  }
  values[threadIdx.x] = buffer[threadIdx.x];
}

extern "C" __global__ void language(int* out, Box box, const __grid_constant__ Box fixed, int n) {
  int i = threadIdx.x;
  Square square(i);
  Strip strip(i);
  const Shape* shape = i % 2 ? static_cast<const Shape*>(&square) : &strip;
  int local[16];
  for (int j = 0; j < 16; ++j) local[j] = j * i;
  int result = shape->area(3) + operations[n & 1](i) + ackermann(2, i % 4) + local[(i * 7) % 16];
  switch (i) {
    case 0: result += 1000; break;
    case 1: result += 2000; break;
    case 2: result += 3000; break;
    case 3: result += 4000; break;
    case 4: result += 5000; break;
    case 5: result ^= 77; break;
    default: result -= 1; break;
  }
  result += static_cast<int>(box.weight[i % 5] * table[i % 4]) + fixed.count +
            static_cast<int>(fixed.weight[(i + 1) % 5]);
  long long wide = static_cast<long long>(result) * 1000000007 / (i + 3) % 1000003;
  out[i] = static_cast<int>(wide);
  atomicAdd(&calls, 1);
}

extern "C" __global__ void mathematics(const double* in, double* out) {
  int i = threadIdx.x;
  double x = in[i];
  float f = static_cast<float>(x);
  double values[] = {sin(x),        cos(x),    exp(x),           log(x),
                     pow(x, 1.5),   sqrt(x),   tan(x),           atan2(x, 2.0),
                     fmod(x, 0.7),  cbrt(x),   erf(x),           tgamma(x),
                     sinf(f),       expf(f),   logf(f),          powf(f, 2.5f),
                     tanhf(f),      rsqrtf(f), fmaf(f, f, 1.0f), __half2float(__float2half(f)),
                     hypot(x, 3.0), floor(x),  rint(x),          1 / x};
  for (int j = 0; j < 24; ++j) out[i * 24 + j] = values[j];
}

extern "C" __global__ void spin_lock(int* lock, int* counter) {
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  __threadfence();
  int seen = *(volatile int*)counter;
  *(volatile int*)counter = seen + 1;
  __threadfence();
  atomicExch(lock, 0);
}

extern "C" __global__ void signal(volatile int* flag, int* out) {
  if (threadIdx.x == 0) {
    while (flag[0] == 0) {
    }
    *out = flag[1];
  } else if (threadIdx.x == blockDim.x - 1) {
    flag[1] = 42;
    __threadfence();
    flag[0] = 1;
  }
}

extern "C" __global__ void float_maximum(const float* values, float* largest) {
  float value = values[blockIdx.x * blockDim.x + threadIdx.x];
  int* address = reinterpret_cast<int*>(largest);
  int old = *address, assumed;
  do {
    assumed = old;
    if (__int_as_float(assumed) >= value) break;
    old = atomicCAS(address, assumed, __float_as_int(value));
  } while (old != assumed);
}

extern "C" __global__ void groups(int* out) {
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int sum = cg::reduce(tile, static_cast<int>(threadIdx.x), cg::plus<int>());
  unsigned odd = tile.ballot(threadIdx.x & 1);
  if (threadIdx.x % 3 == 0) {
    auto active = cg::coalesced_threads();
    sum += 1000 * active.size();
  }
  out[threadIdx.x] = sum + static_cast<int>(__popc(odd)) * 100;
  block.sync();
  if (threadIdx.x == 0)
    out[blockDim.x] = __syncthreads_count(1);
  else
    __syncthreads_count(threadIdx.x % 2);
}

extern "C" __global__ void print(int n, const char* text) {
  printf("%d %s %.2f\n", n + static_cast<int>(threadIdx.x), "words", 2.5);
}
extern "C" __global__ void fails(int n) {
  assert(n > static_cast<int>(threadIdx.x));
}
extern "C" __global__ void heap(int* out) {
  int* memory = static_cast<int*>(malloc(sizeof(int) * (threadIdx.x + 1)));
  for (int i = 0; i <= threadIdx.x; ++i) memory[i] = i;
  int sum = 0;
  for (int i = 0; i <= threadIdx.x; ++i) sum += memory[i];
  out[threadIdx.x] = sum;
  free(memory);
}

extern "C" __global__ void modular_power(const unsigned* base, unsigned exponent,
                                         const unsigned long long* modulus, unsigned long long* out) {
  int i = threadIdx.x;
  unsigned long long result = 1, b = base[i], m = modulus[i];
  for (unsigned e = exponent; e; e >>= 1) {
    if (e & 1) result = static_cast<unsigned long long>(static_cast<unsigned __int128>(result) * b % m);
    b = static_cast<unsigned long long>(static_cast<unsigned __int128>(b) * b % m);
  }
  out[i] = result;
}

// --- Code that relies on the lock step of warps, as written before __syncwarp existed ---

// The last warp of a reduction, unrolled.
extern "C" __global__ void warp_sum(const int* values, int* sums) {
  __shared__ volatile int s[128];
  const int t = threadIdx.x;
  s[t] = values[blockIdx.x * 128 + t];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  __syncthreads();
  if (t < 32) {
    s[t] += s[t + 32];
    s[t] += s[t + 16];
    s[t] += s[t + 8];
    s[t] += s[t + 4];
    s[t] += s[t + 2];
    s[t] += s[t + 1];
  }
  if (t == 0) sums[blockIdx.x] = s[0];
}

// A scan in a loop, from low to high lanes and back: in one of the directions, lanes that run one after
// another compute wrong results.
extern "C" __global__ void warp_scan(int* values, int steps) {
  extern __shared__ volatile int window[];
  const int t = threadIdx.x, lane = t & 31;
  window[t] = values[t];
  for (int i = 0, d = 1; i < steps; ++i, d *= 2)
    if (lane >= d) window[t] += window[t - d];
  const int up = window[t];
  window[t] = values[t];
  for (int i = 0, d = 1; i < steps; ++i, d *= 2)
    if (lane + d < 32) window[t] += window[t + d];
  values[t] = up + 1000 * window[t];
}

// A butterfly in place: all lanes must load before any lane stores. There are barriers between the steps, but
// none within a step.
extern "C" __global__ void butterfly(float* values) {
  __shared__ float3 s[32];
  const int t = threadIdx.x;
  s[t] = make_float3(values[t], 1, 2);
  __syncwarp();
  for (int d = 16; d > 0; d /= 2) {
    s[t].x += s[t ^ d].x;
    s[t].y += s[t ^ d].y;
    __syncwarp();
  }
  values[t] = s[t].x + s[t].y;
}

// One lane of each warp, not the first one, distributes a number.
extern "C" __global__ void hand_out(int* values) {
  __shared__ int s[4];
  const int t = threadIdx.x, warp = t / 32;
  __syncthreads();
  if (t % 32 == 31) s[warp] = 7 + warp;
  values[t] = *(volatile int*)&s[warp];
  __syncthreads();
}

// The last lane of each warp counts what the lanes before it have seen. Reads all dimensions of the block, as
// cooperative groups do.
extern "C" __global__ void count_by_warp(int* seen, int rounds) {
  __shared__ volatile int used[4];
  const int t = threadIdx.x, warp = t / 32;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  const int rank = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + t;
  const unsigned members = 0xffffffffu >> (32 - min(32, threads - rank / 32 * 32));
  if (t % 32 == 0) used[warp] = 0;
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    const int more = __popc(__ballot_sync(members, t % 2 == 0));
    const int before = used[warp];
    seen[round * threads + t] = before;
    if (t % 32 == 31) used[warp] = before + more;
    if (__all_sync(members, before > 1000)) break;
  }
}

// Sorts by votes: all lanes of the warp know which two entries to exchange, and all do it.
extern "C" __global__ void sort_by_votes(const float* keys, int* order) {
  __shared__ float key[32];
  __shared__ int place[32];
  const int t = threadIdx.x;
  key[t] = keys[t];
  place[t] = t;
  __syncwarp();
  if (t < 32) {
    for (int i = 0; i < 31; ++i) {
      int least = i;
      const float own = key[t];
      for (unsigned less; (less = __ballot_sync(~0u, t > i && own < key[least])) != 0;)
        least = __ffs(less) - 1;
      if (least == i) continue;
      const float low = key[least], high = key[i];
      key[i] = low;
      key[least] = high;
      const int from = place[least], to = place[i];
      place[i] = from;
      place[least] = to;
    }
  }
  __syncwarp();
  order[t] = place[t];
}

// One lane tells all lanes the start, and all do the same to the same numbers.
extern "C" __global__ void walk_together(const int* starts, int* sums) {
  __shared__ int numbers[32];
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  __syncthreads();
  int sum = 0;
  for (int i = __shfl_sync(~0u, starts[threadIdx.x], 0); i < 31; ++i) {
    const int number = numbers[i];
    numbers[i + 1] += number;
    sum += number;
  }
  sums[threadIdx.x] = sum;
}

// --- Code that resembles the code above and must keep its speed ---

extern "C" __global__ void own_columns(int* values, int n) {
  __shared__ int s[128 * 8];
  const int t = threadIdx.x;
  for (int i = 0; i < n; ++i) s[t + i * 128] = values[i * 128 + t];
  int sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += s[t + ((i * 5) & 7) * 128];
    s[t + i * 128] = sum;
  }
  values[t] = sum;
}

extern "C" __global__ void own_rows(int* values) {
  __shared__ int s[64 * 9];
  const int t = threadIdx.x;
  for (int i = 0; i < 8; ++i) s[t * 9 + i] = values[i * 64 + t];
  for (int i = 1; i < 8; ++i) s[t * 9 + i] += s[t * 9 + i - 1];
  values[t] = s[t * 9 + 7];
}

extern "C" __global__ void counters(const unsigned* values, int n, unsigned* out) {
  __shared__ unsigned char s[64 * 64];
  const int t = threadIdx.x;
  for (int i = 0; i < 64; ++i) s[t + i * 64] = 0;
  for (int i = 0; i < n; ++i) s[t + (values[i] & 63) * 64]++;
  out[t] = s[t + 64 * (t & 63)];
}

// Players meet in the rounds of a tournament. Each round is made from the one before, which other lanes have
// written to global memory, without a barrier, as in cuSOLVER's batched eigensolvers.
extern "C" __global__ void tournament(int* table, int rounds) {
  const int t = threadIdx.x, pairs = 16;
  int top = 2 * t;
  table[t] = top;
  table[pairs + t] = top + 1;
  for (int i = 1; i < rounds; ++i) {
    int* const next = table + 2 * pairs;
    int bottom = top;
    top = t == 0 ? 0 : t == 1 ? table[pairs] : table[t - 1];
    next[t] = top;
    if (t != pairs - 1) bottom = table[pairs + t + 1];
    next[pairs + t] = bottom;
    table = next;
  }
}

// Each thread uses its own two numbers in global memory, with barriers in between.
extern "C" __global__ void own_pairs(int* values) {
  int* const own = values + 2 * threadIdx.x;
  own[0] += 1;
  own[1] += own[0];
  __syncthreads();
  own[0] += own[1];
}

// Each thread uses its own column of a matrix in global memory.
extern "C" __global__ void running_sums(int* values, int rows) {
  int* const own = values + threadIdx.x;
  for (int i = 1; i < rows; ++i) own[i * 64] += own[(i - 1) * 64];
}
