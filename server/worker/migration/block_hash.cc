#include "server/worker/migration/block_hash.h"

#include <sys/random.h>

#if defined(__x86_64__)
#define GPUPOOL_HAS_AVX2_CODE
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "server/worker/migration/block_hash_kernel.h"
#include "server/worker/migration/racing_reads.h"
#include "server/worker/session/contexts.h"

namespace gpupool::worker {
namespace {

constexpr unsigned kThreads = 256;  // of the kernel's blocks
// Of hash_blocks_at_once(): more do not read memory faster.
constexpr size_t kMostThreads = 8, kLeastBlocksOfThread = 128;

#ifdef GPUPOOL_HAS_AVX2_CODE
#define GPUPOOL_AVX2 __attribute__((target("avx2"), always_inline)) inline
GPUPOOL_AVX2 __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
GPUPOOL_AVX2 __m256i product(__m256i sum) {
  return _mm256_mul_epu32(sum, _mm256_srli_epi64(sum, 32));
}
GPUPOOL_AVX2 uint64_t total(__m256i sums) {
  alignas(32) uint64_t parts[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sums);
  return parts[0] + parts[1] + parts[2] + parts[3];
}

// Four of the hash's products at a time.
__attribute__((target("avx2"))) void hash_blocks_avx2(const std::byte* data, size_t count,
                                                      const uint32_t* key, BlockHash* hashes) {
  constexpr size_t kWords = sizeof(__m256i) / sizeof(uint32_t);
  for (size_t block = 0; block < count; ++block, data += kHashedBlock) {
    __m256i first = _mm256_setzero_si256(), second = first;
    for (size_t i = 0; i < kHashedBlock / sizeof(uint32_t); i += kWords) {
      const __m256i words = load(data + i * sizeof(uint32_t));
      first = _mm256_add_epi64(first, product(_mm256_add_epi32(words, load(key + i))));
      second = _mm256_add_epi64(second, product(_mm256_add_epi32(words, load(key + i + 2))));
    }
    hashes[block] = {total(first), total(second)};
  }
}
#endif

}  // namespace

bool is_all_zero(std::span<const std::byte> bytes) {
  return bytes.empty() ||
         (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

HashKeys::HashKeys() : words_(kWords) {
  const size_t bytes = words_.size() * sizeof(uint32_t);
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = ::getrandom(reinterpret_cast<char*>(words_.data()) + done, bytes - done, 0);
    if (got > 0) done += static_cast<size_t>(got);
  }
}

void hash_blocks(const std::byte* data, size_t count, const HashKeys& keys, BlockHash* hashes) {
  const RacingReads reads;
#ifdef GPUPOOL_HAS_AVX2_CODE
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return hash_blocks_avx2(data, count, keys.words(), hashes);
#endif
  const uint32_t* const key = keys.words();
  for (size_t block = 0; block < count; ++block, data += kHashedBlock) {
    uint64_t first = 0, second = 0;
    for (size_t i = 0; i < kHashedBlock / sizeof(uint32_t); i += 2) {
      uint32_t word[2];
      std::memcpy(word, data + i * sizeof(uint32_t), sizeof word);
      first += uint64_t{word[0] + key[i]} * (word[1] + key[i + 1]);
      second += uint64_t{word[0] + key[i + 2]} * (word[1] + key[i + 3]);
    }
    hashes[block] = {first, second};
  }
}

void hash_blocks_at_once(const std::byte* data, size_t count, const HashKeys& keys, BlockHash* hashes) {
  const size_t most = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  const size_t each = std::max(kLeastBlocksOfThread, (count + most - 1) / most);
  std::vector<std::thread> threads;
  size_t at = 0;
  try {
    for (; count - at > each; at += each)
      threads.emplace_back([=, &keys] { hash_blocks(data + at * kHashedBlock, each, keys, hashes + at); });
  } catch (const std::system_error&) {  // no more threads: this one does the rest
  }
  hash_blocks(data + at * kHashedBlock, count - at, keys, hashes + at);
  for (std::thread& thread : threads) thread.join();
}

DeviceHasher::~DeviceHasher() {
  const VisitContext in(api_, context_);
  if (in.result() != CUDA_SUCCESS) return;
  if (stream_) api_.cuStreamDestroy_v2(stream_);
  if (keys_ != 0) api_.cuMemFree_v2(keys_);
  if (hashes_ != 0) api_.cuMemFree_v2(hashes_);
  if (module_) api_.cuModuleUnload(module_);
}

CUresult DeviceHasher::open(const HashKeys& keys) {
  if (!api_.cuMemAlloc_v2 || !api_.cuMemFree_v2 || !api_.cuStreamCreate || !api_.cuMemsetD8Async)
    return CUDA_ERROR_NOT_SUPPORTED;
  const VisitContext in(api_, context_);
  constexpr size_t kKeyBytes = HashKeys::kWords * sizeof(uint32_t);
  CUresult result = in.result();
  if (result == CUDA_SUCCESS) result = api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS)
    result = api_.cuModuleLoadDataEx(&module_, kBlockHashKernel, 0, nullptr, nullptr);
  if (result == CUDA_SUCCESS) result = api_.cuModuleGetFunction(&kernel_, module_, "gpupool_hash_blocks");
  if (result == CUDA_SUCCESS) result = api_.cuMemAlloc_v2(&keys_, kKeyBytes);
  if (result == CUDA_SUCCESS) result = api_.cuMemAlloc_v2(&hashes_, kMostBlocks * sizeof(BlockHash));
  if (result == CUDA_SUCCESS) result = api_.cuMemcpyHtoDAsync_v2(keys_, keys.words(), kKeyBytes, stream_);
  return result == CUDA_SUCCESS ? api_.cuStreamSynchronize(stream_) : result;
}

CUresult DeviceHasher::hash(CUdeviceptr data, size_t count, BlockHash* hashes) {
  const VisitContext in(api_, context_);
  CUresult result = in.result();
  while (count != 0 && result == CUDA_SUCCESS) {
    const size_t step = std::min(count, kMostBlocks);
    const size_t bytes = step * sizeof(BlockHash);
    result = api_.cuMemsetD8Async(hashes_, 0, bytes, stream_);
    void* arguments[] = {&data, &keys_, &hashes_};
    if (result == CUDA_SUCCESS)
      result = api_.cuLaunchKernel(kernel_, static_cast<unsigned>(step), 1, 1, kThreads, 1, 1, 0, stream_,
                                   arguments, nullptr);
    if (result == CUDA_SUCCESS) result = api_.cuMemcpyDtoHAsync_v2(hashes, hashes_, bytes, stream_);
    if (result == CUDA_SUCCESS) result = api_.cuStreamSynchronize(stream_);
    data += step * kHashedBlock;
    hashes += step;
    count -= step;
  }
  return result;
}

CUresult DeviceHasher::copy_out(std::byte* to, CUdeviceptr from, size_t bytes) {
  const VisitContext in(api_, context_);
  CUresult result = in.result();
  if (result == CUDA_SUCCESS) result = api_.cuMemcpyDtoHAsync_v2(to, from, bytes, stream_);
  return result == CUDA_SUCCESS ? api_.cuStreamSynchronize(stream_) : result;
}

}  // namespace gpupool::worker
