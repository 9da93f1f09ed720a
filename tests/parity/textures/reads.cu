// Reads arrays of one to three dimensions and linear memory, with every addressing and filter mode.
#include "textures.h"

// --- Kernels: each reads at given coordinates ---
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
  for (const auto mode :
       {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder}) {
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
        if (layers > 1)
          read_layers<<<5, 128>>>(texture, at, out, kReads, layers);
        else
          read_2d<<<5, 128>>>(texture, at, out, kReads);
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

void shapes() {
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
  MUST(cudaMemcpy2DToArray(array, 0, 0, plane.data(), kWidth * 4, kWidth * 4, kHeight,
                           cudaMemcpyHostToDevice));
  each_way("2D", 2, array, size, 1);
  std::vector<float> back(plane.size());
  MUST(cudaMemcpy2DFromArray(back.data(), kWidth * 4, array, 0, 0, kWidth * 4, kHeight,
                             cudaMemcpyDeviceToHost));
  compare("2D array, read back", back, plane);
  cudaArray_t other = nullptr;
  MUST(cudaMallocArray(&other, &format, kWidth, kHeight));
  MUST(cudaMemcpy2DArrayToArray(other, 4, 2, array, 0, 0, 10 * 4, 5, cudaMemcpyDeviceToDevice));
  MUST(cudaMemcpy2DFromArray(back.data(), 10 * 4, other, 4, 2, 10 * 4, 5, cudaMemcpyDeviceToHost));
  std::vector<float> part;
  for (int y = 0; y < 5; ++y)
    part.insert(part.end(), plane.begin() + y * kWidth, plane.begin() + y * kWidth + 10);
  back.resize(50);
  compare("a part, from array to array", back, part);
  SHOW(cudaMemcpy2DToArray(array, 0, 0, plane.data(), kWidth * 4, kWidth * 4 + 4, kHeight,
                           cudaMemcpyHostToDevice));
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

void memory_as_texture() {
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

  // Pitched rows.
  float* rows = nullptr;
  size_t pitch = 0;
  MUST(cudaMallocPitch(&rows, &pitch, kWidth * 4, kHeight));
  std::vector<float> plane;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) plane.push_back(value_at(x, y, 0));
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
    expected.push_back(reference([](int x, int y, int) { return value_at(x, y, 0); }, 2, p, size,
                                 cudaAddressModeClamp, true, false));
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
