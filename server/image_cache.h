// The module images that poold keeps for all clients: sealed memory files by name and size, within a bound; those that
// were not asked for the longest go first. poold's one thread.
//
// It never reads an image: a worker takes one out only together with its own check of every byte (cached_images.h), so
// nothing here is worth more than a hint. What a worker deposits is a worker's word for it.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <utility>

#include "protocol/wire/images.h"
#include "protocol/wire/result.h"

namespace gpupool::server {

class ImageCache {
 public:
  // `capacity` in bytes of memory, 0: nothing is kept. Not more than `most_images`, each of which is an open descriptor.
  explicit ImageCache(uint64_t capacity, size_t most_images = kMostImages);
  ~ImageCache();
  ImageCache(const ImageCache&) = delete;
  ImageCache& operator=(const ImageCache&) = delete;

  // Largest image that is kept at all; 0: none is.
  uint64_t largest_image() const;
  // The image's descriptor, which stays the cache's until the next call; -1: not here. `session` is for the log.
  int find(const wire::ImageDigest& name, uint64_t image_bytes, uint64_t session);
  // True where add() would keep it.
  bool wants(const wire::ImageDigest& name, uint64_t image_bytes) const;
  // Takes over the descriptor of a file that poold made, also when it fails: it is not what it should be. Keeps what is there under the name.
  Result<void> add(const wire::ImageDigest& name, uint64_t image_bytes, int descriptor, uint64_t session);
  // Its bytes are not what its name says.
  void drop_damaged(const wire::ImageDigest& name, uint64_t image_bytes, uint64_t session);

  uint64_t bytes() const { return bytes_; }
  size_t count() const { return images_.size(); }
  uint64_t capacity() const { return capacity_; }
  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }

 private:
  static constexpr size_t kMostImages = 4096;
  // The size is part of the key: under a wrong one nobody can keep others from depositing the image.
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
