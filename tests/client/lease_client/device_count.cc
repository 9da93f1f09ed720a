// A driver-API program that prints the number of devices that it sees.
#include <cuda.h>

#include <cstdio>

int main() {
  int count = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS) return 1;
  std::printf("devices: %d\n", count);
}
