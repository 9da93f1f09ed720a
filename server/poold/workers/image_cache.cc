#include "server/poold/workers/image_cache.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

#include "common/log/log.h"
#include "server/handover/sealed_file.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {
namespace {

constexpr uint64_t kPage = 4096;

// The file's pages, plus one for the kernel's and this table's overhead.
uint64_t cost(uint64_t image_bytes) {
  return (image_bytes + 1 + kPage - 1) / kPage * kPage + kPage;
}

// Enough of the name to tell images apart in the log, too little to request one.
std::string shortened(const wire::ImageDigest& name) {
  std::string out;
  for (size_t i = 0; i < 4; ++i) {
    out += "0123456789abcdef"[name[i] >> 4];
    out += "0123456789abcdef"[name[i] & 15];
  }
  return out;
}

size_t descriptors_to_spare() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur / 4, std::numeric_limits<int>::max()));
}

}  // namespace

ImageCache::ImageCache(uint64_t capacity, size_t most_images)
    : capacity_(capacity), most_images_(std::min(most_images, descriptors_to_spare())) {}

ImageCache::~ImageCache() {
  while (!images_.empty()) remove(images_.begin());
}

uint64_t ImageCache::largest_image() const {
  return most_images_ != 0 && capacity_ > 2 * kPage ? capacity_ - 2 * kPage : 0;
}

int ImageCache::find(const wire::ImageDigest& name, uint64_t image_bytes, uint64_t session) {
  const auto found = by_key_.find({name, image_bytes});
  const bool hit = found != by_key_.end();
  ++(hit ? hits_ : misses_);
  log::debug(hit ? "image_cache_hit" : "image_cache_miss", {{"image", shortened(name)},
                                                            {"bytes", image_bytes},
                                                            {"session", session},
                                                            {"hits", hits_},
                                                            {"misses", misses_}});
  if (!hit) return -1;
  images_.splice(images_.begin(), images_, found->second);
  return found->second->descriptor;
}

bool ImageCache::wants(const wire::ImageDigest& name, uint64_t image_bytes) const {
  return image_bytes != 0 && image_bytes <= largest_image() && !by_key_.contains({name, image_bytes});
}

Result<void> ImageCache::add(const wire::ImageDigest& name, uint64_t image_bytes, int descriptor,
                             uint64_t session) {
  const bool fits = image_bytes != 0 && image_bytes <= largest_image();
  if (!fits || !is_sealed_file(descriptor, image_bytes)) {
    close_without_blocking(descriptor);
    return Error{ErrorCode::malformed,
                 fits ? "it deposited an image that is not a sealed memory file of the offered size"
                      : "it deposited an image above the size limit"};
  }
  if (by_key_.contains({name, image_bytes})) {
    close_without_blocking(descriptor);
    return {};
  }
  while (bytes_ + cost(image_bytes) > capacity_ || images_.size() >= most_images_) {
    const auto oldest = std::prev(images_.end());
    log::info("image_cache_evicted",
              {{"image", shortened(oldest->key.first)}, {"bytes", oldest->key.second}});
    remove(oldest);
  }
  images_.push_front({{name, image_bytes}, descriptor});
  by_key_.emplace(images_.front().key, images_.begin());
  bytes_ += cost(image_bytes);
  log::debug("image_cache_added", {{"image", shortened(name)},
                                   {"bytes", image_bytes},
                                   {"session", session},
                                   {"images", images_.size()},
                                   {"in_use", bytes_}});
  return {};
}

void ImageCache::drop_damaged(const wire::ImageDigest& name, uint64_t image_bytes, uint64_t session) {
  const auto found = by_key_.find({name, image_bytes});
  if (found == by_key_.end()) return;
  log::warning("image_cache_damaged", {{"image", shortened(name)}, {"session", session}});
  remove(found->second);
}

void ImageCache::remove(Images::iterator image) {
  bytes_ -= cost(image->key.second);
  close_without_blocking(image->descriptor);
  by_key_.erase(image->key);
  images_.erase(image);
}

}  // namespace gpupool::server
