#include "common/admission/suppressed_events.h"

#include <utility>

namespace gpupool {

void SuppressedEvents::note() {
  if (count_++ != 0) return;
  timer_.expires_after(std::chrono::seconds(1));
  timer_.async_wait([this](const asio::error_code& status) {
    if (!status) finish();
  });
}

void SuppressedEvents::finish() {
  timer_.cancel();
  if (count_ != 0) report_(std::exchange(count_, 0));
}

}  // namespace gpupool
