// Hashes of device memory, which tell what has changed since it was sent. A block that differs has another
// hash with a probability of 1 - 2^-64 (NH of UMAC, RFC 4418, twice with shifted keys), whoever wrote the
// block without knowing the keys.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "server/worker/device/device_api.h"

namespace gpupool::worker {

// Memory of zeros need not be sent, because new memory is zero at the target.
bool is_all_zero(std::span<const std::byte> bytes);

constexpr uint64_t kHashedBlock = 64 * 1024;  // bytes
using BlockHash = std::array<uint64_t, 2>;

// Random numbers, one for each word of a block and two more for the shift. Immutable.
class HashKeys {
 public:
  static constexpr size_t kWords = kHashedBlock / sizeof(uint32_t) + 2;
  HashKeys();
  const uint32_t* words() const { return words_.data(); }

 private:
  std::vector<uint32_t> words_;
};

// Hashes `count` consecutive blocks in host memory, or in device memory that the CPU can read.
void hash_blocks(const std::byte* data, size_t count, const HashKeys& keys, BlockHash* hashes);
// The same with several threads, for many blocks that somebody waits for.
void hash_blocks_at_once(const std::byte* data, size_t count, const HashKeys& keys, BlockHash* hashes);

// The same on a device, for memory that the CPU cannot read. One thread at a time.
class DeviceHasher {
 public:
  // `context` must remain until the destructor has run.
  DeviceHasher(const DeviceApi& api, CUcontext context) : api_(api), context_(context) {}
  ~DeviceHasher();
  DeviceHasher(const DeviceHasher&) = delete;
  DeviceHasher& operator=(const DeviceHasher&) = delete;

  // Loads the kernel and the keys. Call first, once.
  CUresult open(const HashKeys& keys);
  // Hashes `count` consecutive blocks, and waits for the result.
  CUresult hash(CUdeviceptr data, size_t count, BlockHash* hashes);
  // Copies device memory, and waits for the end.
  CUresult copy_out(std::byte* to, CUdeviceptr from, size_t bytes);

 private:
  static constexpr size_t kMostBlocks = 4096;  // per launch

  const DeviceApi& api_;
  const CUcontext context_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr keys_ = 0, hashes_ = 0;
};

}  // namespace gpupool::worker
