// FFT, stencil, ray marching and n-body as in courses and samples, each checked against the CPU.
#include <algorithm>
#include <complex>

#include "check.h"

namespace {

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
    tile[i / 18][i % 18] =
        at(static_cast<int>(blockIdx.x * 16) + i % 18 - 1, static_cast<int>(blockIdx.y * 16) + i / 18 - 1);
  __syncthreads();
  const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
  if (x < width && y < height)
    out[y * width + x] = weights[0] * tile[ty][tx] + weights[1] * (tile[ty - 1][tx] + tile[ty + 1][tx] +
                                                                   tile[ty][tx - 1] + tile[ty][tx + 1]);
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

// --- Ray marching: objects with virtual functions, created and destroyed on the device ---

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
  CHECK(wrong <= 8);  // rays that touch an edge may differ
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
      const float inverse = rsqrtf(x * x + y * y + z * z + 0.01f),
                  pull = tile[j].w * inverse * inverse * inverse;
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

}  // namespace

int main() {
  const Case cases[] = {
      {"FFT", fft}, {"stencil", stencil}, {"ray marching", ray_marching}, {"n-body", n_body}};
  return run_cases(cases);
}
