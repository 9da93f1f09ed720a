#include "server/poold/acceptor/tls_handshake_queue.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/blocked_signals.h"

namespace gpupool::server {
namespace {

constexpr int kNiceness = 5;

}  // namespace

TlsHandshakeQueue::TlsHandshakeQueue(asio::io_context& context)
    : context_(context), thread_((BlockedSignals(), 1)) {
  asio::post(thread_, [] {
    ::pthread_setname_np(::pthread_self(), "handshakes");
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);  // of this thread only; optional
  });
}

void TlsHandshakeQueue::post(Step step) {
  waiting_.push_back(std::move(step));
  start_next();
}

bool TlsHandshakeQueue::cancel(const void* owner) {
  return std::erase_if(waiting_, [owner](const Step& step) { return step.owner == owner; }) != 0;
}

void TlsHandshakeQueue::start_next() {
  if (busy_ || waiting_.empty()) return;
  busy_ = true;
  const auto chosen = next();
  Step step = std::move(*chosen);
  waiting_.erase(chosen);
  asio::post(thread_, [this, step = std::move(step)]() mutable {
    step.work();
    asio::post(context_, [this, step = std::move(step)] {
      busy_ = false;
      step.done();
      start_next();
    });
  });
}

std::list<TlsHandshakeQueue::Step>::iterator TlsHandshakeQueue::next() {
  std::unordered_map<std::string_view, size_t> counts;
  for (const Step& step : waiting_) ++counts[step.peer];
  size_t fewest = waiting_.size();
  for (const Step& step : waiting_) fewest = std::min(fewest, counts[step.peer]);
  const auto is_of_fewest = [&](const Step& step) { return counts[step.peer] == fewest; };
  auto left = std::uniform_int_distribution<std::ptrdiff_t>(
      0, std::count_if(waiting_.begin(), waiting_.end(), is_of_fewest) - 1)(random_);
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [&](const Step& step) { return is_of_fewest(step) && left-- == 0; });
}

}  // namespace gpupool::server
