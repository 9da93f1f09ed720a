// Thread block clusters: cluster barriers, access to the shared memory of other blocks, and asynchronous
// copies that complete an mbarrier.
#include <cooperative_groups.h>

#include <algorithm>
#include <cuda/barrier>
#include <cuda/ptx>
#include <numeric>

#include "check.h"

namespace cg = cooperative_groups;
namespace {

// Each block owns a part of the bins; all blocks increment all bins.
__global__ void histogram_kernel(const uint32_t* in, int count, uint32_t bins_per_block, uint32_t* out) {
  extern __shared__ uint32_t bins[];
  const auto cluster = cg::this_cluster();
  for (uint32_t i = threadIdx.x; i < bins_per_block; i += blockDim.x) bins[i] = 0;
  cluster.sync();
  for (int i = static_cast<int>(cg::this_grid().thread_rank()); i < count;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const uint32_t value = in[i] % (bins_per_block * cluster.num_blocks());
    uint32_t* other = cluster.map_shared_rank(bins, static_cast<int>(value / bins_per_block));
    atomicAdd(other + value % bins_per_block, 1u);
  }
  cluster.sync();
  for (uint32_t i = threadIdx.x; i < bins_per_block; i += blockDim.x)
    atomicAdd(&out[cluster.block_rank() * bins_per_block + i], bins[i]);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, dim3 cluster,
                   Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

void histogram() {
  constexpr uint32_t kBins = 256;
  std::vector<uint32_t> host(20'000);
  Random random(1);
  for (auto& value : host) value = random.next();
  Device<uint32_t> in(host), out(4 * kBins);
  OK(launch(histogram_kernel, dim3(8), dim3(128), kBins * 4, dim3(4), in.get(), 20'000, kBins, out.get()));
  std::vector<uint32_t> expected(4 * kBins);
  for (uint32_t value : host) ++expected[value % (4 * kBins)];
  CHECK(out.read() == expected);
}

// Ranks in two dimensions, and reads from a neighbour's shared memory.
__global__ void __cluster_dims__(2, 2, 1) places(uint32_t* out) {
  __shared__ uint32_t mine;
  const auto cluster = cg::this_cluster();
  const uint32_t rank = cluster.block_rank(), block = blockIdx.y * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) mine = 1000 + block;
  cg::cluster_group::sync();
  const dim3 index = cluster.block_index();
  if (threadIdx.x == 0) {
    out[block * 4] = rank;
    out[block * 4 + 1] = index.y * 2 + index.x;
    out[block * 4 + 2] = *cluster.map_shared_rank(&mine, rank ^ 3);
    out[block * 4 + 3] =
        cluster.query_shared_rank(cluster.map_shared_rank(&mine, rank ^ 1)) * 16 + cluster.num_blocks();
  }
  cluster.barrier_wait(cluster.barrier_arrive());  // no block may exit while others read its memory
}

void two_dimensions() {
  Device<uint32_t> out(24 * 4);
  places<<<dim3(6, 4), 64>>>(out.get());
  const auto got = out.read();
  bool good = true;
  for (uint32_t y = 0; y < 4; ++y)
    for (uint32_t x = 0; x < 6; ++x) {
      const uint32_t *at = got.data() + (y * 6 + x) * 4, rank = y % 2 * 2 + x % 2;
      good &= at[0] == rank && at[1] == rank;
      good &= at[2] == 1000 + (y ^ 1) * 6 + (x ^ 1);
      good &= at[3] == (rank ^ 1) * 16 + 4;
    }
  CHECK(good);
}

// A ring: each block sends its numbers to the next one with an asynchronous copy that completes the
// receiver's mbarrier.
__global__ void __cluster_dims__(4, 1, 1) ring(const int* in, int* out) {
  __shared__ alignas(16) int mine[128], received[128];
  __shared__ alignas(8) uint64_t barrier;
  const auto cluster = cg::this_cluster();
  const uint32_t next = (cluster.block_rank() + 1) % 4;
  mine[threadIdx.x] = in[blockIdx.x * 128 + threadIdx.x];
  if (threadIdx.x == 0) {
    cuda::ptx::mbarrier_init(&barrier, 1);
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
    cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cluster,
                                         cuda::ptx::space_shared, &barrier, sizeof mine);
  }
  cluster.sync();
  if (threadIdx.x == 0)
    cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_shared,
                             cluster.map_shared_rank(received, next), mine, sizeof mine,
                             cluster.map_shared_rank(&barrier, next));
  while (!cuda::ptx::mbarrier_try_wait_parity(&barrier, 0)) {
  }
  out[blockIdx.x * 128 + threadIdx.x] = received[threadIdx.x];
  cluster.sync();
}

void copies_between_blocks() {
  std::vector<int> host(8 * 128), expected(8 * 128);
  std::iota(host.begin(), host.end(), 0);
  for (size_t i = 0; i < host.size(); ++i) {
    const size_t block = i / 128, from = block / 4 * 4 + (block + 3) % 4;
    expected[i] = host[from * 128 + i % 128];
  }
  Device<int> in(host), out(host.size());
  ring<<<8, 128>>>(in.get(), out.get());
  CHECK(out.read() == expected);
}

// Bulk copies from global to shared memory in a pipeline of two stages.
__global__ void pipeline(const int* in, int* out, int tiles) {
  __shared__ alignas(16) int stage[2][256];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ cuda::barrier<cuda::thread_scope_block> ready[2];
  if (threadIdx.x == 0) {
    init(&ready[0], blockDim.x);
    init(&ready[1], blockDim.x);
  }
  __syncthreads();
  const auto fetch = [&](int tile) {
    if (threadIdx.x == 0) {
      cuda::memcpy_async(stage[tile % 2], in + tile * 256, cuda::aligned_size_t<16>(sizeof stage[0]),
                         ready[tile % 2]);
    }
    return ready[tile % 2].arrive();
  };
  auto token = fetch(0);
  for (int tile = 0; tile < tiles; ++tile) {
    cuda::barrier<cuda::thread_scope_block>::arrival_token following{};
    if (tile + 1 < tiles) following = fetch(tile + 1);
    ready[tile % 2].wait(std::move(token));
    out[tile * 256 + threadIdx.x] = stage[tile % 2][threadIdx.x] * 2 + stage[tile % 2][255 - threadIdx.x];
    __syncthreads();
    token = std::move(following);
  }
}

void asynchronous_copies() {
  std::vector<int> host(8 * 256), expected(8 * 256);
  Random random(2);
  for (auto& value : host) value = static_cast<int>(random.below(1000));
  for (size_t i = 0; i < host.size(); ++i) expected[i] = host[i] * 2 + host[i / 256 * 256 + 255 - i % 256];
  Device<int> in(host), out(host.size());
  pipeline<<<1, 256>>>(in.get(), out.get(), 8);
  CHECK(out.read() == expected);
}

void what_cannot_be_launched() {
  Device<uint32_t> out(64);
  const auto with = [&](dim3 grid, dim3 cluster) {
    cudaError_t error = launch(histogram_kernel, grid, dim3(32), 1024, cluster, out.get(), 0, 8u, out.get());
    if (error == cudaSuccess) error = cudaDeviceSynchronize();  // poold's errors come here
    cudaGetLastError();
    return error;
  };
  CHECK(with(dim3(8), dim3(2)) == cudaSuccess);
  CHECK(with(dim3(9), dim3(2)) != cudaSuccess);
  CHECK(with(dim3(32), dim3(16)) != cudaSuccess);  // larger than the portable maximum of 8
  OK(cudaFuncSetAttribute(histogram_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  CHECK(with(dim3(32), dim3(16)) == cudaSuccess);
}

}  // namespace

int main() {
  const Case cases[] = {{"histogram in distributed shared memory", histogram},
                        {"two dimensions", two_dimensions},
                        {"copies between blocks", copies_between_blocks},
                        {"asynchronous copies", asynchronous_copies},
                        {"what cannot be launched", what_cannot_be_launched}};
  return run_cases(cases);
}
