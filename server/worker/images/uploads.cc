#include "server/worker/images/uploads.h"

#include <utility>

namespace gpupool::worker {

Uploads::Added Uploads::add(uint64_t upload, uint64_t total, std::span<const std::byte> part) {
  auto found = uploads_.find(upload);
  if (found == uploads_.end()) {
    if (uploads_.size() >= kMaxUploads) return Added::malformed;
    found = uploads_.try_emplace(upload).first;
    found->second.total = total;
    const uint64_t most = usage_.most_queued(kMaxUploadBytes);
    found->second.refused = promised_ > most || total > most - promised_;
    if (found->second.refused && most < kMaxUploadBytes) {
      usage_.note_refusal(
          {.kind = quota::KindId::queued_bytes, .asked = total, .used = promised_, .limit = most});
    }
    if (!found->second.refused) {
      promised_ += total;
      // Reserves address space only; pages are allocated when they are filled.
      found->second.bytes.reserve(total + 1);
    }
  }
  Upload& image = found->second;
  if (image.total != total) return Added::malformed;
  if (image.refused) return Added::too_much;
  if (part.size() > image.total - image.bytes.size()) return Added::malformed;
  image.bytes.insert(image.bytes.end(), part.begin(), part.end());
  return Added::ok;
}

std::optional<std::vector<std::byte>> Uploads::take(uint64_t upload) {
  const auto found = uploads_.find(upload);
  if (found == uploads_.end()) return std::nullopt;
  Upload image = std::move(found->second);
  uploads_.erase(found);
  if (!image.refused) promised_ -= image.total;
  if (image.refused || image.bytes.size() != image.total) return std::nullopt;
  image.bytes.push_back(std::byte{0});
  return std::move(image.bytes);
}

}  // namespace gpupool::worker
