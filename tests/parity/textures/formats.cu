// Bytes as normalized numbers, gathers, cube maps, mipmap levels.
#include "textures.h"

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
__global__ void read_bytes(cudaTextureObject_t t, float4* as_numbers, uchar4* as_bytes,
                           cudaTextureObject_t raw, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= width) return;
  as_numbers[y * width + x] = tex2D<float4>(t, x + 0.5f, y + 0.5f);
  as_bytes[y * width + x] = tex2D<uchar4>(raw, x + 0.5f, y + 0.5f);
}

void bytes_as_numbers() {
  const auto format = cudaCreateChannelDesc<uchar4>();
  std::vector<uchar4> pixels;
  for (int i = 0; i < kWidth * kHeight; ++i) pixels.push_back(make_uchar4(i, 255 - i % 256, i * 3, i * 5));
  cudaArray_t array = nullptr;
  MUST(cudaMallocArray(&array, &format, kWidth, kHeight));
  MUST(cudaMemcpy2DToArray(array, 0, 0, pixels.data(), kWidth * 4, kWidth * 4, kHeight,
                           cudaMemcpyHostToDevice));
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
        want.push_back(texture == numbers || c == 3 ? u
                       : u <= 0.04045               ? u / 12.92
                                                    : std::pow((u + 0.055) / 1.055, 2.4));
      }
    }
    compare(texture == srgb ? "bytes as sRGB" : "bytes as numbers", have, want, 1e-3f);
  }
  const auto same = download(as_bytes, count);
  std::printf("bytes as they are: %s\n",
              std::memcmp(same.data(), pixels.data(), count * 4) ? "wrong" : "right");
  failures += std::memcmp(same.data(), pixels.data(), count * 4) != 0;
  for (const auto texture : {raw, numbers, srgb}) MUST(cudaDestroyTextureObject(texture));
  MUST(cudaFreeArray(array));
  cudaFree(as_numbers);
  cudaFree(as_bytes);
}

void gathers() {
  const auto format = cudaCreateChannelDesc<float2>();
  std::vector<float2> values;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) values.push_back(make_float2(-1, value_at(x, y, 0)));
  cudaArray_t array = nullptr;
  MUST(cudaMallocArray(&array, &format, kWidth, kHeight, cudaArrayTextureGather));
  MUST(cudaMemcpy2DToArray(array, 0, 0, values.data(), kWidth * 8, kWidth * 8, kHeight,
                           cudaMemcpyHostToDevice));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  const cudaTextureDesc how = reading(cudaAddressModeClamp, false, false);
  cudaTextureObject_t texture = 0;
  MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  std::vector<float2> at;
  for (int i = 0; i < kReads; ++i)
    at.push_back(make_float2((i * 37 % 200) / 8.0f - 2, (i * 11 % 120) / 8.0f - 2));
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

void cubes_and_levels() {
  const auto format = cudaCreateChannelDesc<float>();
  constexpr int kSide = 8;
  std::vector<float> faces;
  for (int face = 0; face < 6; ++face)
    for (int i = 0; i < kSide * kSide; ++i) faces.push_back(face * 100 + i);
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
  // A direction to the centre of each texel: the inverse of the table in CUDA's programming guide.
  std::vector<float4> directions;
  std::vector<float> want;
  for (int face = 0; face < 6; ++face) {
    for (int i = 0; i < kSide * kSide; ++i) {
      const float s = (i % kSide + 0.5f) / kSide * 2 - 1, t = (i / kSide + 0.5f) / kSide * 2 - 1;
      const float4 table[6] = {{1, -t, -s, 0}, {-1, -t, s, 0}, {s, 1, t, 0},
                               {s, -1, -t, 0}, {s, -t, 1, 0},  {-s, -t, -1, 0}};
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
