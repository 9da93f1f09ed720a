// For the linker tests: a device function in an object file and in archives.
extern "C" __device__ int twice(int x) {
  return x + x;
}
