// Variables of every kind; compiled by make_images.sh, never run. SECOND makes another file for the same
// module.
#include <cstdio>

#ifdef SECOND
#define KERNEL second_kernel
extern __device__ int plain;
static __device__ int second_hidden;
#else
#define KERNEL first_kernel
__device__ int plain = 3;
__device__ float table[5][7];
static __device__ int hidden;
__constant__ double factors[4] = {1, 2};
static __constant__ int hidden_factor = 7;
__managed__ int managed[10];
struct Node {
  int* next;
  int value;
};
__device__ Node self = {&plain, 4};
__device__ __align__(256) char aligned[1000];
namespace {
__device__ long long nameless;
}
#endif

__device__ inline int count(int i) {
  static __device__ int calls = 5;  // the same variable in all files
  return atomicAdd(&calls, i);
}

extern __shared__ char dynamic[];
static __shared__ int fixed[3];

extern "C" __global__ void KERNEL(int* out, int n) {
  static __device__ int steps;
  static __constant__ int weights[2] = {4, 5};
  __shared__ int local[32];
  local[threadIdx.x] = n;
  fixed[n] = dynamic[n] + local[n ^ 1];
  steps += weights[n] + count(n) + plain + fixed[n + 1];
#ifdef SECOND
  second_hidden += n;
#else
  hidden += n;
  nameless += n;
  out[0] = static_cast<int>(table[n][n] + hidden_factor + factors[n] + managed[n] + self.value + aligned[n]);
#endif
  out[1] = steps;
  if (n > 1000) printf("%d\n", n);
#ifdef HEAP
  delete[] new int[n];
#endif
}
