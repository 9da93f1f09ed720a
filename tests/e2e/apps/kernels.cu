// The kernels of driver_app, compiled to PTX text.
#include <cassert>
#include <cstdio>

extern "C" {

__device__ unsigned counter = 7;
__constant__ unsigned table[16];

__global__ void fill(unsigned* out, unsigned value, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value + i;
}

__global__ void add(unsigned* values, unsigned value, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] += value;
}

// Adds to the texels of an array with rows of `width`.
__global__ void add_to_surface(unsigned long long surface, unsigned value, unsigned width, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  unsigned texel;
  surf2Dread(&texel, surface, static_cast<int>(i % width * 4), static_cast<int>(i / width));
  surf2Dwrite(texel + value, surface, static_cast<int>(i % width * 4), static_cast<int>(i / width));
}
__global__ void read_texture(unsigned long long texture, unsigned* out, unsigned width, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count)
    out[i] = tex2D<unsigned>(texture, static_cast<float>(i % width), static_cast<float>(i / width));
}

// out[i] = table[i % 16] + i; also adds the number of threads to `counter`.
__global__ void use_symbols(unsigned* out, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = table[i % 16] + i;
  if (i < count) atomicAdd(&counter, 1u);
}

// Each round depends on the previous one, so the compiler cannot remove any.
__global__ void burn(unsigned* out, unsigned rounds) {
  unsigned value = threadIdx.x + 1;
  for (unsigned i = 0; i < rounds; ++i) value = value * 1664525u + (value >> 16) + i;
  out[threadIdx.x] = value;
}

__global__ void burn_forever(volatile unsigned* flag) {
  while (*flag == 0) {
  }
}

__global__ void store_at(unsigned* address) {
  *address = 1;
}
__global__ void stop_with_trap() {
  __trap();
}
__global__ void stop_with_assert(unsigned value) {
  assert(value == 1);
}

__global__ void say(unsigned number) {
  if (threadIdx.x == 0) printf("kernel %u says %s and %.2f\n", number, "hello", number * 0.5);
}

__global__ void nothing() {}

}  // extern "C"
