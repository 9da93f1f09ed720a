// A CUDA runtime program that reads and writes textures and surfaces of every kind, with each result compared with what plain
// code on the CPU makes of the programming guide's formulas. Prints every call's result and how many values are wrong, which is 0.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

static int failures = 0;

static cudaError_t show(cudaError_t result, const char* call) {
  std::printf("%s -> %s\n", call, cudaGetErrorName(result));
  std::fflush(stdout);
  return result;
}
#define SHOW(call) show((call), #call)
#define MUST(call) failures += show((call), #call) != cudaSuccess

static void compare(const char* what, const std::vector<float>& have, const std::vector<float>& want, float tolerance = 0) {
  size_t wrong = have.size() != want.size(), first = 0;
  for (size_t i = 0; i < std::min(have.size(), want.size()); ++i) {
    if (std::fabs(have[i] - want[i]) <= tolerance) continue;
    if (wrong++ == 0) first = i;
  }
  std::printf("%s: %zu values, %zu wrong\n", what, have.size(), wrong);
  if (wrong) std::printf("  first at %zu: %g, not %g\n", first, have[first], want[first]);
  failures += wrong != 0;
}

// --- Kernels: each reads at coordinates that it is given ---
__global__ void read_1d(cudaTextureObject_t t, const float* at, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex1D<float>(t, at[i]);
}
__global__ void fetch_1d(cudaTextureObject_t t, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex1Dfetch<float>(t, i - 4);
}
__global__ void read_2d(cudaTextureObject_t t, const float2* at, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex2D<float>(t, at[i].x, at[i].y);
}
__global__ void read_3d(cudaTextureObject_t t, const float4* at, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex3D<float>(t, at[i].x, at[i].y, at[i].z);
}
__global__ void read_layers(cudaTextureObject_t t, const float2* at, float* out, int n, int layers) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex2DLayered<float>(t, at[i].x, at[i].y, i % layers);
}
__global__ void read_cube(cudaTextureObject_t t, const float4* at, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = texCubemap<float>(t, at[i].x, at[i].y, at[i].z);
}
__global__ void read_level(cudaTextureObject_t t, const float2* at, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex2DLod<float>(t, at[i].x, at[i].y, i * 0.125f);
}
__global__ void gather(cudaTextureObject_t t, const float2* at, float4* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex2Dgather<float4>(t, at[i].x, at[i].y, 1);
}
__global__ void read_bytes(cudaTextureObject_t t, float4* as_numbers, uchar4* as_bytes, cudaTextureObject_t raw, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= width) return;
  as_numbers[y * width + x] = tex2D<float4>(t, x + 0.5f, y + 0.5f);
  as_bytes[y * width + x] = tex2D<uchar4>(raw, x + 0.5f, y + 0.5f);
}
__global__ void write_surface(cudaSurfaceObject_t s, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x < width && y < height) surf2Dwrite(make_float2(x * 10.0f + y, -1.0f), s, x * 8, y);
}
__global__ void copy_surface(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= width + 8) return;
  float2 value = make_float2(-7, -7);
  surf2Dread(&value, from, (x - 4) * 8, y, cudaBoundaryModeClamp);
  value.y = x;
  surf2Dwrite(value, to, (x - 4) * 8, y, cudaBoundaryModeZero);
}
__global__ void write_volume(cudaSurfaceObject_t s, int width) {
  const int x = threadIdx.x;
  if (x < width) surf3Dwrite<short>(short(x + blockIdx.x * 100 + blockIdx.y * 1000), s, x * 2, blockIdx.x, blockIdx.y);
}
__global__ void beyond(cudaSurfaceObject_t s) { surf2Dwrite(1.0f, s, 4000, 0); }
__global__ void use_bad_texture(cudaTextureObject_t t, float* out) { *out = tex2D<float>(t, 0, 0); }

// --- The reference: texels by number, weights with eight fractional bits ---
static int place(int i, int n, cudaTextureAddressMode mode) {
  if (mode == cudaAddressModeWrap) return ((i % n) + n) % n;
  if (mode == cudaAddressModeMirror) {
    const int p = ((i % (2 * n)) + 2 * n) % (2 * n);
    return p < n ? p : 2 * n - 1 - p;
  }
  if (mode == cudaAddressModeBorder) return i < 0 || i >= n ? -1 : i;
  return std::min(std::max(i, 0), n - 1);
}
using Texels = std::function<float(int, int, int)>;  // -1: the border
static float reference(const Texels& texel, int dimensions, const float* at, const int* size, cudaTextureAddressMode mode,
                       bool linear, bool normalized) {
  if (!normalized && (mode == cudaAddressModeWrap || mode == cudaAddressModeMirror)) mode = cudaAddressModeClamp;
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
static T* upload(const std::vector<T>& values) {
  T* memory = nullptr;
  if (cudaMalloc(&memory, values.size() * sizeof(T)) != cudaSuccess) return nullptr;
  cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return memory;
}
template <class T>
static std::vector<T> download(const T* memory, size_t count) {
  std::vector<T> values(count);
  cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost);
  return values;
}

static cudaTextureDesc reading(cudaTextureAddressMode mode, bool linear, bool normalized) {
  cudaTextureDesc how{};
  for (auto& m : how.addressMode) m = mode;
  how.filterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
  how.normalizedCoords = normalized;
  how.borderColor[0] = 0.75f;
  return how;
}
static const char* name_of(cudaTextureAddressMode mode) {
  return mode == cudaAddressModeWrap ? "wrap" : mode == cudaAddressModeClamp ? "clamp" : mode == cudaAddressModeMirror ? "mirror" : "border";
}

constexpr int kWidth = 19, kHeight = 11, kDepth = 5, kReads = 640;

static float value_at(int x, int y, int z) { return float((x * 7 + y * 13 + z * 29) % 101) / 4; }

static std::vector<float> coordinates(int d, bool normalized, int size) {
  std::vector<float> at(kReads);
  for (int i = 0; i < kReads; ++i) {
    const float unit = float((i * (31 + 8 * d)) % 1024) / 512 - 0.5f;  // -0.5 to 1.5, exact in binary
    at[i] = normalized ? unit : unit * size;
  }
  return at;
}

static void each_way(const char* what, int dimensions, cudaArray_t array, const int* size, int layers) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  float* out = nullptr;
  cudaMalloc(&out, kReads * sizeof(float));
  for (const auto mode : {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder}) {
    for (int kind = 0; kind < 4; ++kind) {
      const bool linear = kind & 1, normalized = kind & 2;
      const cudaTextureDesc how = reading(mode, linear, normalized);
      cudaTextureObject_t texture = 0;
      const cudaError_t made = cudaCreateTextureObject(&texture, &resource, &how, nullptr);
      char line[100];
      std::snprintf(line, sizeof line, "%s %s %s %s -> %s", what, name_of(mode), linear ? "linear" : "point",
                    normalized ? "normalized" : "plain", cudaGetErrorName(made));
      failures += made != cudaSuccess;
      std::vector<float> parts[3], want;
      for (int d = 0; d < 3; ++d) parts[d] = coordinates(d, normalized, size[d]);
      if (dimensions == 1) {
        float* at = upload(parts[0]);
        read_1d<<<5, 128>>>(texture, at, out, kReads);
        cudaFree(at);
      } else if (dimensions == 2) {
        std::vector<float2> pairs(kReads);
        for (int i = 0; i < kReads; ++i) pairs[i] = make_float2(parts[0][i], parts[1][i]);
        float2* at = upload(pairs);
        if (layers > 1) read_layers<<<5, 128>>>(texture, at, out, kReads, layers);
        else read_2d<<<5, 128>>>(texture, at, out, kReads);
        cudaFree(at);
      } else {
        std::vector<float4> places(kReads);
        for (int i = 0; i < kReads; ++i) places[i] = make_float4(parts[0][i], parts[1][i], parts[2][i], 0);
        float4* at = upload(places);
        read_3d<<<5, 128>>>(texture, at, out, kReads);
        cudaFree(at);
      }
      for (int i = 0; i < kReads; ++i) {
        const float at[3] = {parts[0][i], parts[1][i], parts[2][i]};
        const Texels texel = [&](int x, int y, int z) {
          return x < 0 || y < 0 || z < 0 ? 0.75f : value_at(x, y, layers > 1 ? i % layers : z);
        };
        want.push_back(reference(texel, dimensions, at, size, mode, linear, normalized));
      }
      compare(line, download(out, kReads), want, linear ? 0.02f : 0);
      failures += cudaDestroyTextureObject(texture) != cudaSuccess;
    }
  }
  cudaFree(out);
}

static cudaMemcpy3DParms whole(cudaArray_t array, std::vector<float>& host, int width, int height, int depth) {
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(host.data(), width * sizeof(float), width, height);
  copy.dstArray = array;
  copy.extent = make_cudaExtent(width, height, depth);
  copy.kind = cudaMemcpyHostToDevice;
  return copy;
}

static void shapes() {
  const auto format = cudaCreateChannelDesc<float>();
  const int size[3] = {kWidth, kHeight, kDepth};
  std::vector<float> line, plane, volume;
  for (int z = 0; z < kDepth; ++z) {
    for (int y = 0; y < kHeight; ++y) {
      for (int x = 0; x < kWidth; ++x) volume.push_back(value_at(x, y, z));
    }
  }
  plane.assign(volume.begin(), volume.begin() + kWidth * kHeight);
  line.assign(volume.begin(), volume.begin() + kWidth);
  cudaArray_t array = nullptr;
  MUST(cudaMallocArray(&array, &format, kWidth));
  MUST(cudaMemcpy2DToArray(array, 0, 0, line.data(), kWidth * 4, kWidth * 4, 1, cudaMemcpyHostToDevice));
  each_way("1D", 1, array, size, 1);
  MUST(cudaFreeArray(array));
  MUST(cudaMallocArray(&array, &format, kWidth, kHeight));
  MUST(cudaMemcpy2DToArray(array, 0, 0, plane.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
  each_way("2D", 2, array, size, 1);
  std::vector<float> back(plane.size());
  MUST(cudaMemcpy2DFromArray(back.data(), kWidth * 4, array, 0, 0, kWidth * 4, kHeight, cudaMemcpyDeviceToHost));
  compare("2D array, read back", back, plane);
  cudaArray_t other = nullptr;
  MUST(cudaMallocArray(&other, &format, kWidth, kHeight));
  MUST(cudaMemcpy2DArrayToArray(other, 4, 2, array, 0, 0, 10 * 4, 5, cudaMemcpyDeviceToDevice));
  MUST(cudaMemcpy2DFromArray(back.data(), 10 * 4, other, 4, 2, 10 * 4, 5, cudaMemcpyDeviceToHost));
  std::vector<float> part;
  for (int y = 0; y < 5; ++y) part.insert(part.end(), plane.begin() + y * kWidth, plane.begin() + y * kWidth + 10);
  back.resize(50);
  compare("a part, from array to array", back, part);
  SHOW(cudaMemcpy2DToArray(array, 0, 0, plane.data(), kWidth * 4, kWidth * 4 + 4, kHeight, cudaMemcpyHostToDevice));
  SHOW(cudaMemcpy2DToArray(array, 2, 0, plane.data(), kWidth * 4, 8, 1, cudaMemcpyHostToDevice));
  MUST(cudaFreeArray(other));
  MUST(cudaFreeArray(array));
  MUST(cudaMalloc3DArray(&array, &format, make_cudaExtent(kWidth, kHeight, kDepth)));
  cudaMemcpy3DParms copy = whole(array, volume, kWidth, kHeight, kDepth);
  MUST(cudaMemcpy3D(&copy));
  each_way("3D", 3, array, size, 1);
  MUST(cudaFreeArray(array));
  MUST(cudaMalloc3DArray(&array, &format, make_cudaExtent(kWidth, kHeight, kDepth), cudaArrayLayered));
  copy = whole(array, volume, kWidth, kHeight, kDepth);
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreate(&stream));
  MUST(cudaMemcpy3DAsync(&copy, stream));
  MUST(cudaStreamSynchronize(stream));
  each_way("layered", 2, array, size, kDepth);
  cudaChannelFormatDesc is{};
  cudaExtent extent{};
  unsigned flags = 0;
  MUST(cudaArrayGetInfo(&is, &extent, &flags, array));
  std::printf("%d bits, %zu x %zu x %zu, flags %u\n", is.x, extent.width, extent.height, extent.depth, flags);
  MUST(cudaFreeArray(array));
  MUST(cudaStreamDestroy(stream));
}

static void memory_as_texture() {
  std::vector<float> values(1000);
  for (int i = 0; i < 1000; ++i) values[i] = i * 0.5f;
  float *memory = upload(values), *out = nullptr;
  cudaMalloc(&out, 1008 * sizeof(float));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = memory;
  resource.res.linear.desc = cudaCreateChannelDesc<float>();
  resource.res.linear.sizeInBytes = 1000 * sizeof(float);
  cudaTextureDesc how{};
  cudaTextureObject_t texture = 0;
  MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  fetch_1d<<<8, 128>>>(texture, out, 1008);
  std::vector<float> want(1008, 0.0f);
  std::copy(values.begin(), values.end(), want.begin() + 4);
  compare("linear memory, with 0 outside", download(out, 1008), want);
  cudaResourceDesc told{};
  MUST(cudaGetTextureObjectResourceDesc(&told, texture));
  std::printf("told: type %d, the same memory %d\n", told.resType, told.res.linear.devPtr == memory);
  MUST(cudaDestroyTextureObject(texture));
  resource.res.linear.devPtr = memory + 1;
  SHOW(cudaCreateTextureObject(&texture, &resource, &how, nullptr));

  // Rows with a pitch.
  float* rows = nullptr;
  size_t pitch = 0;
  MUST(cudaMallocPitch(&rows, &pitch, kWidth * 4, kHeight));
  std::vector<float> plane;
  for (int y = 0; y < kHeight; ++y) for (int x = 0; x < kWidth; ++x) plane.push_back(value_at(x, y, 0));
  MUST(cudaMemcpy2D(rows, pitch, plane.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
  resource = {};
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D.devPtr = rows;
  resource.res.pitch2D.desc = cudaCreateChannelDesc<float>();
  resource.res.pitch2D.width = kWidth;
  resource.res.pitch2D.height = kHeight;
  resource.res.pitch2D.pitchInBytes = pitch;
  how = reading(cudaAddressModeClamp, true, false);
  MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  std::vector<float2> at(kReads);
  const auto xs = coordinates(0, false, kWidth), ys = coordinates(1, false, kHeight);
  std::vector<float> expected;
  const int size[3] = {kWidth, kHeight, 1};
  for (int i = 0; i < kReads; ++i) {
    at[i] = make_float2(xs[i], ys[i]);
    const float p[3] = {xs[i], ys[i], 0};
    expected.push_back(reference([](int x, int y, int) { return value_at(x, y, 0); }, 2, p, size, cudaAddressModeClamp, true, false));
  }
  float2* places = upload(at);
  read_2d<<<5, 128>>>(texture, places, out, kReads);
  compare("rows with a pitch", download(out, kReads), expected, 0.02f);
  MUST(cudaDestroyTextureObject(texture));
  cudaFree(places);
  cudaFree(rows);
  cudaFree(memory);
  cudaFree(out);
}

static void bytes_as_numbers() {
  const auto format = cudaCreateChannelDesc<uchar4>();
  std::vector<uchar4> pixels;
  for (int i = 0; i < kWidth * kHeight; ++i) pixels.push_back(make_uchar4(i, 255 - i % 256, i * 3, i * 5));
  cudaArray_t array = nullptr;
  MUST(cudaMallocArray(&array, &format, kWidth, kHeight));
  MUST(cudaMemcpy2DToArray(array, 0, 0, pixels.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc how = reading(cudaAddressModeClamp, false, false);
  cudaTextureObject_t raw = 0, numbers = 0, srgb = 0;
  MUST(cudaCreateTextureObject(&raw, &resource, &how, nullptr));
  how.readMode = cudaReadModeNormalizedFloat;
  MUST(cudaCreateTextureObject(&numbers, &resource, &how, nullptr));
  how.sRGB = 1;
  MUST(cudaCreateTextureObject(&srgb, &resource, &how, nullptr));
  const size_t count = pixels.size();
  float4* as_numbers = nullptr;
  uchar4* as_bytes = nullptr;
  cudaMalloc(&as_numbers, count * sizeof(float4));
  cudaMalloc(&as_bytes, count * sizeof(uchar4));
  for (const cudaTextureObject_t texture : {numbers, srgb}) {
    read_bytes<<<dim3(1, kHeight), 32>>>(texture, as_numbers, as_bytes, raw, kWidth, kHeight);
    std::vector<float> have, want;
    for (const float4& v : download(as_numbers, count)) have.insert(have.end(), {v.x, v.y, v.z, v.w});
    for (const uchar4& v : pixels) {
      const unsigned char channels[4] = {v.x, v.y, v.z, v.w};
      for (int c = 0; c < 4; ++c) {
        const double u = channels[c] / 255.0;
        want.push_back(texture == numbers || c == 3 ? u : u <= 0.04045 ? u / 12.92 : std::pow((u + 0.055) / 1.055, 2.4));
      }
    }
    compare(texture == srgb ? "bytes as sRGB" : "bytes as numbers", have, want, 1e-3f);
  }
  const auto same = download(as_bytes, count);
  std::printf("bytes as they are: %s\n", std::memcmp(same.data(), pixels.data(), count * 4) ? "wrong" : "right");
  failures += std::memcmp(same.data(), pixels.data(), count * 4) != 0;
  for (const auto texture : {raw, numbers, srgb}) MUST(cudaDestroyTextureObject(texture));
  MUST(cudaFreeArray(array));
  cudaFree(as_numbers);
  cudaFree(as_bytes);
}

static void gathers() {
  const auto format = cudaCreateChannelDesc<float2>();
  std::vector<float2> values;
  for (int y = 0; y < kHeight; ++y) for (int x = 0; x < kWidth; ++x) values.push_back(make_float2(-1, value_at(x, y, 0)));
  cudaArray_t array = nullptr;
  MUST(cudaMallocArray(&array, &format, kWidth, kHeight, cudaArrayTextureGather));
  MUST(cudaMemcpy2DToArray(array, 0, 0, values.data(), kWidth * 8, kWidth * 8, kHeight, cudaMemcpyHostToDevice));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  const cudaTextureDesc how = reading(cudaAddressModeClamp, false, false);
  cudaTextureObject_t texture = 0;
  MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  std::vector<float2> at;
  for (int i = 0; i < kReads; ++i) at.push_back(make_float2((i * 37 % 200) / 8.0f - 2, (i * 11 % 120) / 8.0f - 2));
  float2* places = upload(at);
  float4* out = nullptr;
  cudaMalloc(&out, kReads * sizeof(float4));
  gather<<<5, 128>>>(texture, places, out, kReads);
  std::vector<float> have, want;
  for (const float4& v : download(out, kReads)) have.insert(have.end(), {v.x, v.y, v.z, v.w});
  for (const float2& p : at) {
    const int x = int(std::floor(p.x - 0.5f)), y = int(std::floor(p.y - 0.5f));
    const auto texel = [](int tx, int ty) {
      return value_at(std::min(std::max(tx, 0), kWidth - 1), std::min(std::max(ty, 0), kHeight - 1), 0);
    };
    want.insert(want.end(), {texel(x, y + 1), texel(x + 1, y + 1), texel(x + 1, y), texel(x, y)});
  }
  compare("gather", have, want);
  MUST(cudaDestroyTextureObject(texture));
  MUST(cudaFreeArray(array));
  cudaFree(places);
  cudaFree(out);
}

static void cubes_and_levels() {
  const auto format = cudaCreateChannelDesc<float>();
  constexpr int kSide = 8;
  std::vector<float> faces;
  for (int face = 0; face < 6; ++face) for (int i = 0; i < kSide * kSide; ++i) faces.push_back(face * 100 + i);
  cudaArray_t array = nullptr;
  MUST(cudaMalloc3DArray(&array, &format, make_cudaExtent(kSide, kSide, 6), cudaArrayCubemap));
  cudaMemcpy3DParms copy = whole(array, faces, kSide, kSide, 6);
  MUST(cudaMemcpy3D(&copy));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc how = reading(cudaAddressModeClamp, false, true);
  cudaTextureObject_t texture = 0;
  MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  // One direction to each texel's centre, by the table of the programming guide read backwards.
  std::vector<float4> directions;
  std::vector<float> want;
  for (int face = 0; face < 6; ++face) {
    for (int i = 0; i < kSide * kSide; ++i) {
      const float s = (i % kSide + 0.5f) / kSide * 2 - 1, t = (i / kSide + 0.5f) / kSide * 2 - 1;
      const float4 table[6] = {{1, -t, -s, 0}, {-1, -t, s, 0}, {s, 1, t, 0}, {s, -1, -t, 0}, {s, -t, 1, 0}, {-s, -t, -1, 0}};
      directions.push_back({table[face].x * 3, table[face].y * 3, table[face].z * 3, 0});
      want.push_back(face * 100 + i);
    }
  }
  float4* at = upload(directions);
  float* out = nullptr;
  cudaMalloc(&out, 1024 * sizeof(float));
  read_cube<<<3, 128>>>(texture, at, out, int(directions.size()));
  compare("cube", download(out, directions.size()), want);
  MUST(cudaDestroyTextureObject(texture));
  MUST(cudaFreeArray(array));
  cudaFree(at);

  cudaMipmappedArray_t pyramid = nullptr;
  MUST(cudaMallocMipmappedArray(&pyramid, &format, make_cudaExtent(16, 16, 0), 4));
  for (unsigned level = 0; level < 4; ++level) {
    cudaArray_t floor = nullptr;
    MUST(cudaGetMipmappedArrayLevel(&floor, pyramid, level));
    const int side = 16 >> level;
    std::vector<float> values(side * side, float(10 * level));
    MUST(cudaMemcpy2DToArray(floor, 0, 0, values.data(), side * 4, side * 4, side, cudaMemcpyHostToDevice));
  }
  cudaArray_t none = nullptr;
  SHOW(cudaGetMipmappedArrayLevel(&none, pyramid, 4));
  resource.resType = cudaResourceTypeMipmappedArray;
  resource.res.mipmap.mipmap = pyramid;
  for (const bool between : {false, true}) {
    how = reading(cudaAddressModeClamp, true, true);
    how.mipmapFilterMode = between ? cudaFilterModeLinear : cudaFilterModePoint;
    how.minMipmapLevelClamp = 0.5f;
    how.maxMipmapLevelClamp = 2.75f;
    how.mipmapLevelBias = 0.25f;
    MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    std::vector<float2> middle(40, make_float2(0.4f, 0.6f));
    float2* where = upload(middle);
    read_level<<<1, 64>>>(texture, where, out, 40);
    std::vector<float> levels;
    for (int i = 0; i < 40; ++i) {
      const float lod = std::max(0.5f, std::min(2.75f, i * 0.125f + 0.25f));
      levels.push_back(10 * (between ? lod : std::floor(lod + 0.5f)));
    }
    compare(between ? "between levels" : "levels", download(out, 40), levels, 0.05f);
    cudaFree(where);
    MUST(cudaDestroyTextureObject(texture));
  }
  MUST(cudaFreeMipmappedArray(pyramid));
  SHOW(cudaFreeMipmappedArray(nullptr));
  cudaFree(out);
}

static void surfaces() {
  const auto format = cudaCreateChannelDesc<float2>();
  cudaArray_t from = nullptr, to = nullptr;
  MUST(cudaMallocArray(&from, &format, kWidth, kHeight, cudaArraySurfaceLoadStore));
  MUST(cudaMallocArray(&to, &format, kWidth, kHeight, cudaArraySurfaceLoadStore));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  cudaSurfaceObject_t source = 0, target = 0;
  resource.res.array.array = from;
  MUST(cudaCreateSurfaceObject(&source, &resource));
  resource.res.array.array = to;
  MUST(cudaCreateSurfaceObject(&target, &resource));
  write_surface<<<dim3(1, kHeight), 32>>>(source, kWidth, kHeight);
  copy_surface<<<dim3(1, kHeight), 32>>>(source, target, kWidth);
  std::vector<float> have(2 * kWidth * kHeight), want;
  MUST(cudaMemcpy2DFromArray(have.data(), kWidth * 8, to, 0, 0, kWidth * 8, kHeight, cudaMemcpyDeviceToHost));
  for (int y = 0; y < kHeight; ++y) for (int x = 0; x < kWidth; ++x) want.insert(want.end(), {x * 10.0f + y, x + 4.0f});
  compare("surfaces", have, want);
  MUST(cudaDestroySurfaceObject(source));
  MUST(cudaDestroySurfaceObject(target));
  MUST(cudaFreeArray(from));
  MUST(cudaFreeArray(to));
  const auto shorts = cudaCreateChannelDesc<short>();
  MUST(cudaMalloc3DArray(&from, &shorts, make_cudaExtent(8, 4, 3), cudaArraySurfaceLoadStore));
  resource.res.array.array = from;
  MUST(cudaCreateSurfaceObject(&source, &resource));
  write_volume<<<dim3(4, 3), 8>>>(source, 8);
  std::vector<short> volume(96);
  cudaMemcpy3DParms copy{};
  copy.srcArray = from;
  copy.dstPtr = make_cudaPitchedPtr(volume.data(), 16, 8, 4);
  copy.extent = make_cudaExtent(8, 4, 3);
  copy.kind = cudaMemcpyDeviceToHost;
  MUST(cudaMemcpy3D(&copy));
  have.assign(volume.begin(), volume.end());
  want.clear();
  for (int z = 0; z < 3; ++z) for (int y = 0; y < 4; ++y) for (int x = 0; x < 8; ++x) want.push_back(x + y * 100 + z * 1000);
  compare("a volume as surface", have, want);
  MUST(cudaDestroySurfaceObject(source));
  MUST(cudaFreeArray(from));
  MUST(cudaMallocArray(&from, &format, kWidth, kHeight));
  resource.res.array.array = from;
  SHOW(cudaCreateSurfaceObject(&source, &resource));
  MUST(cudaFreeArray(from));
}

static void refused() {
  const auto format = cudaCreateChannelDesc<float>();
  cudaArray_t array = nullptr;
  SHOW(cudaMallocArray(&array, &format, 0, 0));
  SHOW(cudaMallocArray(&array, &format, size_t{1} << 30));
  SHOW(cudaMalloc3DArray(&array, &format, make_cudaExtent(8, 8, 5), cudaArrayCubemap));
  SHOW(cudaDestroyTextureObject(1234567));
  SHOW(cudaDestroySurfaceObject(1234567));
  cudaResourceDesc resource{};
  SHOW(cudaGetTextureObjectResourceDesc(&resource, 1234567));
  SHOW(cudaFreeArray(nullptr));
  cudaDeviceProp properties{};
  MUST(cudaGetDeviceProperties(&properties, 0));
  std::printf("limits %d %d %d %d %d\n", properties.maxTexture1D, properties.maxTexture2D[0], properties.maxTexture3D[2],
              properties.maxTextureCubemap, properties.maxSurface2DLayered[2]);
}

int main(int count, char** words) {
  const std::string fault = count > 1 ? words[1] : "";
  if (fault == "outside") {
    const auto format = cudaCreateChannelDesc<float>();
    cudaArray_t array = nullptr;
    MUST(cudaMallocArray(&array, &format, 16, 16, cudaArraySurfaceLoadStore));
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaSurfaceObject_t surface = 0;
    MUST(cudaCreateSurfaceObject(&surface, &resource));
    beyond<<<1, 1>>>(surface);
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaFreeArray(array));
    return failures != 0;
  }
  if (fault == "wild") {
    float* out = nullptr;
    MUST(cudaMalloc(&out, 4));
    use_bad_texture<<<1, 1>>>(0x7fffdeadbeefull, out);
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaMalloc(&out, 4));
    return failures != 0;
  }
  shapes();
  memory_as_texture();
  bytes_as_numbers();
  gathers();
  cubes_and_levels();
  surfaces();
  refused();
  std::printf("%d failures\n", failures);
  return failures != 0;
}
