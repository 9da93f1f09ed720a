// Copies with tensor maps (TMA): boxes of tensors with one to five dimensions, out-of-bounds elements,
// swizzling, stores and reductions; maps modified on the device; bulk reductions.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <cuda/barrier>
#include <cuda/ptx>

#include "check.h"

namespace ptx = cuda::ptx;
namespace {

using Barrier = cuda::barrier<cuda::thread_scope_block>;

// Encodes a tensor map with the driver's function, obtained like in programs that only link with the runtime.
CUtensorMap encode(CUtensorMapDataType type, std::vector<uint64_t> sizes, std::vector<uint64_t> strides,
                   std::vector<uint32_t> box, void* memory,
                   CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE, std::vector<uint32_t> steps = {},
                   CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  steps.resize(sizes.size(), 1);
  CUtensorMap map;
  const CUresult result = function(&map, type, static_cast<uint32_t>(sizes.size()), memory, sizes.data(),
                                   strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, fill);
  CHECK(result == CUDA_SUCCESS);
  return map;
}

__device__ void wait_for(uint64_t* barrier) {
  while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cta, barrier, 0)) {
  }
}

__device__ void begin(uint64_t* barrier, uint32_t bytes) {
  ptx::mbarrier_init(barrier, 1);
  ptx::fence_proxy_async(ptx::space_shared);
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, bytes);
}

// Copies a box to global memory byte by byte, without interpreting its layout.
__global__ void load_matrix(const __grid_constant__ CUtensorMap map, int x, int y, uint32_t bytes,
                            uint8_t* out) {
  extern __shared__ __align__(1024) uint8_t box[];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    begin(&barrier, bytes);
    const int at[2] = {x, y};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, &map, at, &barrier);
  }
  __syncthreads();
  wait_for(&barrier);
  for (uint32_t n = threadIdx.x; n < bytes; n += blockDim.x) out[n] = box[n];
}

constexpr uint32_t kWidth = 40, kHeight = 12;  // of the matrix

std::vector<float> matrix() {
  std::vector<float> values(kWidth * kHeight);
  for (uint32_t n = 0; n < values.size(); ++n) values[n] = static_cast<float>(n) + 0.5f;
  return values;
}

void boxes_of_a_matrix() {
  const auto host = matrix();
  Device<float> tensor(host);
  constexpr uint32_t kX = 16, kY = 4, kBytes = kX * kY * 4;
  const auto map =
      encode(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, {kWidth, kHeight}, {kWidth * 4}, {kX, kY}, tensor.get());
  for (const auto& [x, y] : {std::pair{0, 0}, {8, 3}, {-3, -2}, {33, 10}, {100, 0}, {0, -4}}) {
    Device<uint8_t> out(kBytes);
    load_matrix<<<1, 32, kBytes>>>(map, x, y, kBytes, out.get());
    std::vector<float> got(kX * kY), expected(kX * kY);
    std::memcpy(got.data(), out.read().data(), kBytes);
    for (int row = 0; row < static_cast<int>(kY); ++row)
      for (int column = 0; column < static_cast<int>(kX); ++column) {
        const int r = y + row, c = x + column;
        const bool inside = r >= 0 && r < static_cast<int>(kHeight) && c >= 0 && c < static_cast<int>(kWidth);
        expected[row * kX + column] = inside ? host[r * kWidth + c] : 0.0f;
      }
    CHECK(got == expected);
  }
  // With element stride 2 in y, and NaN as the out-of-bounds fill.
  const auto every_second =
      encode(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, {kWidth, kHeight}, {kWidth * 4}, {kX, kY}, tensor.get(),
             CU_TENSOR_MAP_SWIZZLE_NONE, {1, 2}, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
  Device<uint8_t> out(kBytes / 2);
  load_matrix<<<1, 32, kBytes>>>(every_second, 32, 1, kBytes / 2, out.get());
  std::vector<float> got(kX * kY / 2);
  std::memcpy(got.data(), out.read().data(), kBytes / 2);
  CHECK(got[0] == host[kWidth + 32]);
  CHECK(got[kX] == host[3 * kWidth + 32]);
  CHECK(std::isnan(got[8]));
}

void swizzles() {
  std::vector<uint16_t> host(64 * 16);
  for (uint32_t n = 0; n < host.size(); ++n) host[n] = static_cast<uint16_t>(n);
  Device<uint16_t> tensor(host);
  struct Mode {
    CUtensorMapSwizzle mode;
    uint32_t elements, mask;  // address bits 7 to 9 are XORed into bits 4 to 6, as far as the mask allows
  };
  for (const Mode& mode :
       {Mode{CU_TENSOR_MAP_SWIZZLE_32B, 16, 0x10}, Mode{CU_TENSOR_MAP_SWIZZLE_64B, 32, 0x30},
        Mode{CU_TENSOR_MAP_SWIZZLE_128B, 64, 0x70}}) {
    const uint32_t bytes = mode.elements * 16 * 2;
    const auto map =
        encode(CU_TENSOR_MAP_DATA_TYPE_UINT16, {64, 16}, {128}, {mode.elements, 16}, tensor.get(), mode.mode);
    Device<uint8_t> out(bytes);
    load_matrix<<<1, 32, bytes>>>(map, 0, 0, bytes, out.get());
    const auto got = out.read();
    bool right = true;
    for (uint32_t row = 0; row < 16; ++row)
      for (uint32_t column = 0; column < mode.elements; ++column) {
        const uint32_t plain = (row * mode.elements + column) * 2, at = plain ^ (plain >> 3 & mode.mask);
        uint16_t value;
        std::memcpy(&value, got.data() + at, 2);
        right = right && value == host[row * 64 + column];
      }
    CHECK(right);
  }
}

// Each block transposes a tile through shared memory; loads and stores use tensor maps.
__global__ void transpose(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
  __shared__ __align__(128) uint32_t in[16][16], out[16][16];
  __shared__ uint64_t barrier;
  const int x = static_cast<int>(blockIdx.x * 16), y = static_cast<int>(blockIdx.y * 16);
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    begin(&barrier, sizeof in);
    const int at[2] = {x, y};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, in, &from, at, &barrier);
  }
  __syncthreads();
  wait_for(&barrier);
  out[threadIdx.x][threadIdx.y] = in[threadIdx.y][threadIdx.x];
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    const int at[2] = {y, x};
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &to, at, out);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
  }
}

void transposed() {
  constexpr uint32_t kRows = 36, kColumns = 52;  // not multiples of the tile size
  std::vector<uint32_t> host(kRows * kColumns), expected(host.size());
  for (uint32_t n = 0; n < host.size(); ++n) host[n] = n * 7 + 1;
  for (uint32_t row = 0; row < kRows; ++row)
    for (uint32_t column = 0; column < kColumns; ++column)
      expected[column * kRows + row] = host[row * kColumns + column];
  Device<uint32_t> in(host), out(host.size());
  const auto from =
      encode(CU_TENSOR_MAP_DATA_TYPE_UINT32, {kColumns, kRows}, {kColumns * 4}, {16, 16}, in.get());
  const auto to = encode(CU_TENSOR_MAP_DATA_TYPE_UINT32, {kRows, kColumns}, {kRows * 4}, {16, 16}, out.get());
  transpose<<<dim3(4, 3), dim3(16, 16)>>>(from, to);
  CHECK(out.read() == expected);
}

// Each block loads a box of a five-dimensional tensor and adds it to another tensor.
__global__ void add_box(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
  __shared__ __align__(128) int box[2 * 2 * 2 * 2 * 4];
  __shared__ uint64_t barrier;
  begin(&barrier, sizeof box);
  const int at[5] = {4, 1, 1, 0, 1};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, &from, at, &barrier);
  wait_for(&barrier);
  ptx::cp_reduce_async_bulk_tensor(ptx::space_global, ptx::space_shared, ptx::op_add, &to, at, box);
  ptx::cp_async_bulk_commit_group();
  ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

void five_dimensions() {
  const std::vector<uint64_t> sizes{8, 3, 3, 2, 3}, strides{32, 96, 288, 576};
  std::vector<int> host(8 * 3 * 3 * 2 * 3), expected(host.size());
  for (uint32_t n = 0; n < host.size(); ++n) host[n] = static_cast<int>(n) - 100;
  constexpr int kBlocks = 50;
  for (uint32_t n = 0; n < host.size(); ++n) {
    const uint32_t x = n % 8, y = n / 8 % 3, z = n / 24 % 3, v = n / 144;
    if (x >= 4 && y >= 1 && z >= 1 && v >= 1) expected[n] = host[n] * kBlocks;
  }
  Device<int> in(host), out(host.size());
  const auto from = encode(CU_TENSOR_MAP_DATA_TYPE_INT32, sizes, strides, {4, 2, 2, 2, 2}, in.get());
  const auto to = encode(CU_TENSOR_MAP_DATA_TYPE_INT32, sizes, strides, {4, 2, 2, 2, 2}, out.get());
  add_box<<<kBlocks, 1>>>(from, to);
  CHECK(out.read() == expected);
}

// Makes a copy of a map with another global address on the device.
__global__ void move_map(const CUtensorMap* from, CUtensorMap* to, const uint32_t* memory) {
  __shared__ __align__(128) CUtensorMap map;
  if (threadIdx.x == 0) {
    map = *from;
    ptx::tensormap_replace_global_address(ptx::space_shared, &map, memory);
  }
  __syncwarp();
  ptx::tensormap_cp_fenceproxy(ptx::sem_release, ptx::scope_gpu, to, &map, ptx::n32_t<128>());
}

__global__ void load_through(const CUtensorMap* map, uint32_t* out) {
  __shared__ __align__(128) uint32_t box[32];
  __shared__ uint64_t barrier;
  ptx::fence_proxy_tensormap_generic(ptx::sem_acquire, ptx::scope_gpu, map, ptx::n32_t<128>());
  begin(&barrier, sizeof box);
  const int at[1] = {16};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, map, at, &barrier);
  wait_for(&barrier);
  for (int n = 0; n < 32; ++n) out[n] = box[n];
}

void maps_changed_on_the_device() {
  std::vector<uint32_t> host(128), wanted(32);
  for (uint32_t n = 0; n < 128; ++n) host[n] = n * 3;
  for (uint32_t n = 0; n < 32; ++n) wanted[n] = (n + 16) * 3;
  Device<uint32_t> zeros(128), values(host), out(32);
  Device<CUtensorMap> maps(
      std::vector<CUtensorMap>(2, encode(CU_TENSOR_MAP_DATA_TYPE_UINT32, {128}, {}, {32}, zeros.get())));
  move_map<<<1, 32>>>(maps.get(), maps.get() + 1, values.get());
  load_through<<<1, 1>>>(maps.get() + 1, out.get());
  CHECK(out.read() == wanted);
  load_through<<<1, 1>>>(maps.get(), out.get());
  CHECK(out.read() == std::vector<uint32_t>(32));
}

// Each block adds its row to the sum.
__global__ void sum_rows(const float* rows, float* sum) {
  __shared__ __align__(16) float row[256];
  row[threadIdx.x] = rows[blockIdx.x * 256 + threadIdx.x];
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, sum, row,
                            uint32_t{sizeof row});
  ptx::cp_async_bulk_commit_group();
  ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

void bulk_reductions() {
  std::vector<float> host(64 * 256), expected(256);
  for (uint32_t n = 0; n < host.size(); ++n) expected[n % 256] += host[n] = static_cast<float>(n % 101);
  Device<float> rows(host), sum(256);
  sum_rows<<<64, 256>>>(rows.get(), sum.get());
  CHECK(sum.read() == expected);
}

}  // namespace

int main() {
  const Case cases[] = {{"boxes of a matrix", boxes_of_a_matrix},
                        {"swizzles", swizzles},
                        {"a transposed matrix", transposed},
                        {"five dimensions", five_dimensions},
                        {"maps changed on the device", maps_changed_on_the_device},
                        {"bulk reductions", bulk_reductions}};
  return run_cases(cases);
}
