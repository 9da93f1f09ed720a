// Assembles uploaded module images, whose parts arrive in order, until a load command takes them. Executor's
// thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/worker/session/session_start.h"

namespace gpupool::worker {

constexpr uint64_t kMaxUploadBytes = uint64_t{1} << 30;  // total of all uploads
constexpr size_t kMaxUploads = 4096;

class Uploads {
 public:
  enum class Added { ok, malformed, too_much };
  // The tenant's limit of queued bytes applies to the total of all uploads.
  explicit Uploads(Usage usage) : usage_(std::move(usage)) {}
  // Appends a part of an image of `total` bytes.
  Added add(uint64_t upload, uint64_t total, std::span<const std::byte> part);
  // Removes and returns the image with an appended NUL byte (PTX is text), or nullopt if it is unknown or
  // incomplete.
  std::optional<std::vector<std::byte>> take(uint64_t upload);
  // True if no part of an image waits for others, or for its load command.
  bool empty() const { return uploads_.empty(); }

 private:
  struct Upload {
    uint64_t total = 0;
    bool refused = false;  // exceeds the limit: parts are dropped, and the load fails
    std::vector<std::byte> bytes;
  };
  std::unordered_map<uint64_t, Upload> uploads_;
  const Usage usage_;
  uint64_t promised_ = 0;  // sum of `total` of all accepted uploads
};

}  // namespace gpupool::worker
