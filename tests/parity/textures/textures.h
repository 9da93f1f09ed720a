// Shared by a CUDA runtime program that reads and writes textures and surfaces of every kind, and compares
// each result with a CPU implementation of the programming guide's formulas. Prints each call's result and
// the number of wrong values, which must be 0.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

inline int failures = 0;

inline cudaError_t show(cudaError_t result, const char* call) {
  std::printf("%s -> %s\n", call, cudaGetErrorName(result));
  std::fflush(stdout);
  return result;
}
#define SHOW(call) show((call), #call)
#define MUST(call) failures += show((call), #call) != cudaSuccess

inline void compare(const char* what, const std::vector<float>& have, const std::vector<float>& want,
                    float tolerance = 0) {
  size_t wrong = have.size() != want.size(), first = 0;
  for (size_t i = 0; i < std::min(have.size(), want.size()); ++i) {
    if (std::fabs(have[i] - want[i]) <= tolerance) continue;
    if (wrong++ == 0) first = i;
  }
  std::printf("%s: %zu values, %zu wrong\n", what, have.size(), wrong);
  if (wrong) std::printf("  first at %zu: %g, not %g\n", first, have[first], want[first]);
  failures += wrong != 0;
}

// --- The CPU reference: filter weights have eight fractional bits ---
inline int place(int i, int n, cudaTextureAddressMode mode) {
  if (mode == cudaAddressModeWrap) return ((i % n) + n) % n;
  if (mode == cudaAddressModeMirror) {
    const int p = ((i % (2 * n)) + 2 * n) % (2 * n);
    return p < n ? p : 2 * n - 1 - p;
  }
  if (mode == cudaAddressModeBorder) return i < 0 || i >= n ? -1 : i;
  return std::min(std::max(i, 0), n - 1);
}
using Texels = std::function<float(int, int, int)>;  // -1: border
inline float reference(const Texels& texel, int dimensions, const float* at, const int* size,
                       cudaTextureAddressMode mode, bool linear, bool normalized) {
  if (!normalized && (mode == cudaAddressModeWrap || mode == cudaAddressModeMirror))
    mode = cudaAddressModeClamp;
  int first[3] = {0, 0, 0};
  float share[3] = {0, 0, 0};
  for (int d = 0; d < dimensions; ++d) {
    float x = normalized ? at[d] * size[d] : at[d];
    if (linear) x -= 0.5f;
    first[d] = int(std::floor(x));
    if (linear) share[d] = std::nearbyint((x - std::floor(x)) * 256) / 256;
  }
  float sum = 0;
  for (int corner = 0; corner < (linear ? 1 << dimensions : 1); ++corner) {
    float weight = 1;
    int p[3] = {0, 0, 0};
    for (int d = 0; d < dimensions; ++d) {
      const int step = corner >> d & 1;
      weight *= step ? share[d] : 1 - share[d];
      p[d] = place(first[d] + step, size[d], mode);
    }
    sum += weight * texel(p[0], p[1], p[2]);
  }
  return sum;
}

template <class T>
T* upload(const std::vector<T>& values) {
  T* memory = nullptr;
  if (cudaMalloc(&memory, values.size() * sizeof(T)) != cudaSuccess) return nullptr;
  cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return memory;
}
template <class T>
std::vector<T> download(const T* memory, size_t count) {
  std::vector<T> values(count);
  cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost);
  return values;
}

inline cudaTextureDesc reading(cudaTextureAddressMode mode, bool linear, bool normalized) {
  cudaTextureDesc how{};
  for (auto& m : how.addressMode) m = mode;
  how.filterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
  how.normalizedCoords = normalized;
  how.borderColor[0] = 0.75f;
  return how;
}
inline const char* name_of(cudaTextureAddressMode mode) {
  return mode == cudaAddressModeWrap     ? "wrap"
         : mode == cudaAddressModeClamp  ? "clamp"
         : mode == cudaAddressModeMirror ? "mirror"
                                         : "border";
}

constexpr int kWidth = 19, kHeight = 11, kDepth = 5, kReads = 640;

inline float value_at(int x, int y, int z) {
  return float((x * 7 + y * 13 + z * 29) % 101) / 4;
}
inline cudaMemcpy3DParms whole(cudaArray_t array, std::vector<float>& host, int width, int height,
                               int depth) {
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(host.data(), width * sizeof(float), width, height);
  copy.dstArray = array;
  copy.extent = make_cudaExtent(width, height, depth);
  copy.kind = cudaMemcpyHostToDevice;
  return copy;
}

// The parts of the program.
void shapes();
void memory_as_texture();
void bytes_as_numbers();
void gathers();
void cubes_and_levels();
void surfaces();
void write_outside(cudaSurfaceObject_t surface);
void read_wild(cudaTextureObject_t texture, float* out);
