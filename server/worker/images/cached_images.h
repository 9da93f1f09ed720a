// The worker's client of poold's image cache: fetches images that the program's client names and proves to
// have, and stores images that the client has uploaded. Called on the executor's thread; poold's answers
// arrive on the control thread.
//
// Trusts only the bytes themselves: a file is used only if it is sealed, so that no process can change it,
// and if the client's proof matches exactly the bytes that will be loaded. Every failure counts as a cache
// miss.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>

#include "protocol/images/name.h"
#include "protocol/wire/images.h"
#include "server/worker/session/control.h"

namespace gpupool::worker {

// An image in a sealed file, mapped read-only; a NUL byte follows its last byte.
class MappedImage {
 public:
  // The caller keeps `descriptor`. bytes() is empty if the file is not sealed, has another size, or lacks the
  // NUL byte.
  MappedImage(int descriptor, uint64_t size);
  ~MappedImage();
  MappedImage(MappedImage&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedImage& operator=(MappedImage&&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

class CachedImages {
 public:
  // `control` may be null: no cache. poold normally answers at once; after `patience` the request counts as a
  // miss.
  CachedImages(Control* control, const image::Nonce& nonce, uint64_t largest,
               std::chrono::milliseconds patience = std::chrono::milliseconds(1000));
  ~CachedImages();
  CachedImages(const CachedImages&) = delete;
  CachedImages& operator=(const CachedImages&) = delete;

  std::optional<MappedImage> take(const wire::ImageName& name);
  void deposit(std::span<const std::byte> image);

 private:
  template <server::ControlKind kind>
  server::ControlMessage ask(const wire::ImageDigest& name, uint64_t bytes);
  void answered(server::ControlMessage message);

  Control* const control_;
  const image::Nonce nonce_;
  const uint64_t largest_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t request_ = 0;
  std::optional<server::ControlMessage> answer_;  // answer to request_
};

}  // namespace gpupool::worker
