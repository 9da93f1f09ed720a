// The worker's side of poold's image cache: takes out what its client names and proves to have, and puts in what its
// client has uploaded. The executor's thread uses it; answers arrive on the control thread.
//
// Nothing is believed but the bytes at hand: a file is used only if it is sealed, so that nobody can change it any more,
// and if it gives the client's own proof over exactly the bytes that will be loaded. Whatever goes wrong counts as a miss.
#pragma once
#include <condition_variable>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>

#include "protocol/image/name.h"
#include "protocol/wire/images.h"
#include "server/worker/control.h"

namespace gpupool::worker {

// An image in a sealed file, mapped; a NUL stands behind its bytes.
class MappedImage {
 public:
  // `descriptor` stays the caller's. bytes() is empty where the file is not what it should be.
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
  // Null control: no cache. poold answers at once; one that does not is not worth waiting for.
  CachedImages(Control* control, const image::Nonce& nonce, uint64_t largest,
               std::chrono::milliseconds patience = std::chrono::milliseconds(1000));
  ~CachedImages();
  CachedImages(const CachedImages&) = delete;
  CachedImages& operator=(const CachedImages&) = delete;

  std::optional<MappedImage> take(const wire::ImageName& name);
  void deposit(std::span<const std::byte> image);

 private:
  server::ControlMessage ask(server::ControlKind kind, const wire::ImageDigest& name, uint64_t bytes);
  void answered(server::ControlMessage message);

  Control* const control_;
  const image::Nonce nonce_;
  const uint64_t largest_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t request_ = 0;
  std::optional<server::ControlMessage> answer_;  // to request_
};

}  // namespace gpupool::worker
