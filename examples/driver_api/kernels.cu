// Kernels of driver_api: compiled to PTX text by nvcc -ptx, embedded in the program, and loaded with
// cuModuleLoadData().
extern "C" {

__constant__ int scale;

__global__ void saxpy(const int* x, int* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] += scale * x[i];
}

// Reverses each block's elements through dynamic shared memory.
__global__ void reverse_blocks(int* values, int count) {
  extern __shared__ int block[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  block[threadIdx.x] = i < count ? values[i] : 0;
  __syncthreads();
  const int size = min(static_cast<int>(blockDim.x), count - static_cast<int>(blockIdx.x * blockDim.x));
  if (i < count) values[i] = block[size - 1 - threadIdx.x];
}

}  // extern "C"
