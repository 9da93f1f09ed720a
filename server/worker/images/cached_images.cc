#include "server/worker/images/cached_images.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "server/handover/sealed_file.h"
#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {

using server::ControlKind;

namespace {

constexpr ControlKind kAnswers[] = {ControlKind::image_found, ControlKind::image_missing,
                                    ControlKind::image_space, ControlKind::image_unwanted};

}  // namespace

MappedImage::MappedImage(int descriptor, uint64_t size) {
  if (!server::is_sealed_file(descriptor, size)) return;
  void* const place = ::mmap(nullptr, size + 1, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (place == MAP_FAILED) return;
  const std::span bytes(static_cast<const std::byte*>(place), size + 1);
  if (bytes.back() == std::byte{0})
    bytes_ = bytes.first(size);
  else
    ::munmap(place, size + 1);
}

MappedImage::~MappedImage() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size() + 1);
}

CachedImages::CachedImages(Control* control, const image::Nonce& nonce, uint64_t largest,
                           std::chrono::milliseconds patience)
    : control_(largest != 0 ? control : nullptr), nonce_(nonce), largest_(largest), patience_(patience) {
  if (!control_) return;
  for (const ControlKind kind : kAnswers) {
    control_->handle(kind, [this](server::ControlMessage message) { answered(std::move(message)); });
  }
}

CachedImages::~CachedImages() {
  if (!control_) return;
  for (const ControlKind kind : kAnswers) control_->handle(kind, nullptr);
  if (answer_ && answer_->descriptor >= 0) ::close(answer_->descriptor);
}

void CachedImages::answered(server::ControlMessage message) {
  const std::lock_guard lock(mutex_);
  if (message.body<server::packet::ImageQuestion>().request != request_ ||
      answer_) {  // the request has timed out
    if (message.descriptor >= 0) ::close(message.descriptor);
    return;
  }
  answer_ = std::move(message);
  changed_.notify_one();
}

// Sends a request and waits for its answer. The answer's descriptor is -1 if poold does not have the image,
// does not want it, or does not answer in time.
template <ControlKind kind>
server::ControlMessage CachedImages::ask(const wire::ImageDigest& name, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  answer_.reset();
  const auto sent = control_->send<kind>({.request = ++request_, .bytes = bytes, .name = name});
  const Waiting waiting("poold's answer about an image");
  if (sent) changed_.wait_for(lock, patience_, [this] { return answer_.has_value(); });
  ++request_;  // ignores late answers
  return std::exchange(answer_, std::nullopt).value_or(server::ControlMessage{});
}

std::optional<MappedImage> CachedImages::take(const wire::ImageName& name) {
  if (!control_ || name.size == 0 || name.size > largest_) return std::nullopt;
  const server::ControlMessage answer = ask<ControlKind::image_wanted>(name.digest, name.size);
  if (answer.descriptor < 0) return std::nullopt;
  MappedImage image(answer.descriptor, name.size);
  ::close(answer.descriptor);
  // The proof matches, so these are the client's bytes, whatever the cache calls them.
  if (!image.bytes().empty() && image::proof(nonce_, image.bytes()) == name.proof) return image;
  if (image.bytes().empty() || image::digest(image.bytes()) != name.digest) {
    (void)control_->send<ControlKind::image_damaged>({.bytes = name.size, .name = name.digest});
  }
  return std::nullopt;
}

void CachedImages::deposit(std::span<const std::byte> image) {
  if (!control_ || image.empty() || image.size() > largest_) return;
  const wire::ImageDigest name = image::digest(image);
  const server::ControlMessage space = ask<ControlKind::image_offered>(name, image.size());
  if (space.descriptor < 0) return;
  if (server::fill_image_file(space.descriptor, image)) {  // otherwise the image stays uncached
    (void)control_->send<ControlKind::image_deposit>({.bytes = image.size(), .name = name});
  }
  ::close(space.descriptor);
}

}  // namespace gpupool::worker
