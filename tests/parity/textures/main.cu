#include "textures.h"

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
  std::printf("limits %d %d %d %d %d\n", properties.maxTexture1D, properties.maxTexture2D[0],
              properties.maxTexture3D[2], properties.maxTextureCubemap, properties.maxSurface2DLayered[2]);
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
    write_outside(surface);
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaFreeArray(array));
    return failures != 0;
  }
  if (fault == "wild") {
    float* out = nullptr;
    MUST(cudaMalloc(&out, 4));
    read_wild(0x7fffdeadbeefull, out);
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
