// Surfaces, and accesses out of bounds or through an invalid texture.
#include "textures.h"

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
  if (x < width)
    surf3Dwrite<short>(short(x + blockIdx.x * 100 + blockIdx.y * 1000), s, x * 2, blockIdx.x, blockIdx.y);
}
__global__ void beyond(cudaSurfaceObject_t s) {
  surf2Dwrite(1.0f, s, 4000, 0);
}
__global__ void use_bad_texture(cudaTextureObject_t t, float* out) {
  *out = tex2D<float>(t, 0, 0);
}

void write_outside(cudaSurfaceObject_t surface) {
  beyond<<<1, 1>>>(surface);
}
void read_wild(cudaTextureObject_t texture, float* out) {
  use_bad_texture<<<1, 1>>>(texture, out);
}

void surfaces() {
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
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) want.insert(want.end(), {x * 10.0f + y, x + 4.0f});
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
  for (int z = 0; z < 3; ++z)
    for (int y = 0; y < 4; ++y)
      for (int x = 0; x < 8; ++x) want.push_back(x + y * 100 + z * 1000);
  compare("a volume as surface", have, want);
  MUST(cudaDestroySurfaceObject(source));
  MUST(cudaFreeArray(from));
  MUST(cudaMallocArray(&from, &format, kWidth, kHeight));
  resource.res.array.array = from;
  SHOW(cudaCreateSurfaceObject(&source, &resource));
  MUST(cudaFreeArray(from));
}
