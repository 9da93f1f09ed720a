// Module images on their way: parts come in order and are put together until a load takes them.
// The executor's thread alone uses it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/worker/session.h"

namespace gpupool::worker {

constexpr uint64_t kMaxUploadBytes = uint64_t{1} << 30;  // of all uploads together
constexpr size_t kMaxUploads = 4096;

class Uploads {
 public:
  enum class Added { ok, malformed, too_much };
  // The tenant's limit of queued bytes holds for all uploads together.
  explicit Uploads(Usage usage) : usage_(std::move(usage)) {}
  Added add(uint64_t upload, uint64_t total, std::span<const std::byte> part);
  // The whole image and one NUL behind it (PTX is text); nullopt: unknown, or not complete. It is gone then.
  std::optional<std::vector<std::byte>> take(uint64_t upload);

 private:
  struct Upload {
    uint64_t total = 0;
    bool refused = false;  // too much: its parts are dropped, its load fails
    std::vector<std::byte> bytes;
  };
  std::unordered_map<uint64_t, Upload> uploads_;
  const Usage usage_;
  uint64_t promised_ = 0;  // sum of the totals
};

}  // namespace gpupool::worker
