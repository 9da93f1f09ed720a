// Module images that poold keeps for all clients: sealed memory files, found by name and size, of limited
// total size. The least recently used image is evicted first. WorkerPool uses it on poold's thread.
//
// poold never reads an image, and a deposited image may be wrong. A worker that gets one verifies every byte
// (cached_images.h).
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <utility>

#include "common/result.h"
#include "protocol/wire/images.h"

namespace gpupool::server {

class ImageCache {
 public:
  // `capacity` is in bytes of memory; 0: keeps nothing. Keeps at most `most_images`, each of which is an open
  // descriptor.
  explicit ImageCache(uint64_t capacity, size_t most_images = kMostImages);
  ~ImageCache();
  ImageCache(const ImageCache&) = delete;
  ImageCache& operator=(const ImageCache&) = delete;

  // Size of the largest image that is kept; 0: none.
  uint64_t largest_image() const;
  // Returns the image's descriptor, which the cache owns and which is valid until the next call; -1: not
  // found. `session` is for the log.
  int find(const wire::ImageDigest& name, uint64_t image_bytes, uint64_t session);
  // True if add() would keep the image.
  bool wants(const wire::ImageDigest& name, uint64_t image_bytes) const;
  // Takes ownership of the descriptor of a file that poold made, also on failure. ErrorCode::malformed: the
  // file is not sealed or has another size. An image that exists under this name and size is kept.
  Result<void> add(const wire::ImageDigest& name, uint64_t image_bytes, int descriptor, uint64_t session);
  // Removes an image whose bytes do not match its name.
  void drop_damaged(const wire::ImageDigest& name, uint64_t image_bytes, uint64_t session);

  // Calls `visit` with name, size and descriptor of each image, the least recently used one first.
  template <class F>
  void for_each(F&& visit) const {
    for (auto image = images_.rbegin(); image != images_.rend(); ++image)
      visit(image->key.first, image->key.second, image->descriptor);
  }

  // Calls `visit` with the name and a reference of each counter.
  template <class F>
  void for_each_counter(F&& visit) {
    visit("image_cache_hits", hits_);
    visit("image_cache_misses", misses_);
  }

  uint64_t bytes() const { return bytes_; }
  size_t count() const { return images_.size(); }
  uint64_t capacity() const { return capacity_; }
  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }

 private:
  static constexpr size_t kMostImages = 4096;
  // The size is part of the key: an image under a wrong size does not keep the right one from being
  // deposited.
  using Key = std::pair<wire::ImageDigest, uint64_t>;
  struct Image {
    Key key;
    int descriptor;
  };
  using Images = std::list<Image>;
  void remove(Images::iterator image);

  const uint64_t capacity_;
  const size_t most_images_;
  Images images_;  // most recently used first
  std::map<Key, Images::iterator> by_key_;
  uint64_t bytes_ = 0;
  uint64_t hits_ = 0;
  uint64_t misses_ = 0;
};

}  // namespace gpupool::server
