// Multiplies two matrices of any shape, tile by tile through shared memory.
#include <vector>

#include "common/example.h"

constexpr int kTile = 16;

// c (rows x columns) = a (rows x inner) * b (inner x columns), all row-major.
__global__ void matrix_multiply(const float* a, const float* b, float* c, int rows, int inner, int columns) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;

  float sum = 0;
  for (int start = 0; start < inner; start += kTile) {
    const int a_column = start + threadIdx.x;
    const int b_row = start + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < rows && a_column < inner ? a[row * inner + a_column] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = b_row < inner && column < columns ? b[b_row * columns + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  if (row < rows && column < columns) c[row * columns + column] = sum;
}

int main(int argc, char** argv) {
  long rows = 200, inner = 150, columns = 250;
  parse_options(argc, argv, "Multiplies a rows x inner matrix by an inner x columns matrix.",
                {{"--rows", "rows of the result", &rows, 1, 8192},
                 {"--inner", "columns of the first matrix", &inner, 1, 8192},
                 {"--columns", "columns of the result", &columns, 1, 8192}});

  // With small integers every sum is exact in a float, in any order of the additions.
  std::vector<float> a(rows * inner), b(inner * columns), c(rows * columns);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 7 % 17) - 8;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 5 % 23) - 11;

  print_device();
  Stopwatch watch;
  float *device_a, *device_b, *device_c;
  CUDA_CHECK(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&device_c, c.size() * sizeof(float)));
  CUDA_CHECK(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));

  const dim3 block(kTile, kTile);
  const dim3 grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  matrix_multiply<<<grid, block>>>(device_a, device_b, device_c, rows, inner, columns);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(device_a));
  CUDA_CHECK(cudaFree(device_b));
  CUDA_CHECK(cudaFree(device_c));
  const double milliseconds = watch.milliseconds();

  bool passed = true;
  std::vector<float> expected(columns);
  for (long row = 0; row < rows; ++row) {
    expected.assign(columns, 0.0f);
    for (long k = 0; k < inner; ++k)
      for (long column = 0; column < columns; ++column)
        expected[column] += a[row * inner + k] * b[k * columns + column];
    for (long column = 0; column < columns; ++column) passed &= c[row * columns + column] == expected[column];
  }
  std::printf("result   %ld x %ld times %ld x %ld, checksum %016llx\n", rows, inner, inner, columns,
              static_cast<unsigned long long>(checksum(c.data(), c.size() * sizeof(float))));
  return finish(passed, milliseconds);
}
