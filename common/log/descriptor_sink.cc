#include "common/log/descriptor_sink.h"

#include <utility>

#include "common/log/write_line.h"

namespace gpupool::log {

DescriptorSink::DescriptorSink(int descriptor, std::function<std::string(uint64_t)> lost_line)
    : descriptor_(descriptor), lost_line_(std::move(lost_line)) {}

bool DescriptorSink::reserve(size_t bytes) {
  if (!background_) return true;
  const std::lock_guard lock(waiting_mutex_);
  if (waiting_ + bytes + kPerLine > kMostBytes) {
    ++lost_;
    return false;
  }
  waiting_ += bytes + kPerLine;
  return true;
}

bool DescriptorSink::await_written(std::chrono::milliseconds patience) {
  std::unique_lock lock(waiting_mutex_);
  return all_written_.wait_for(lock, patience, [this] { return waiting_ == 0; });
}

void DescriptorSink::sink_it_(const spdlog::details::log_msg& message) {
  put(message);
  if (!background_) return;
  const size_t cost = message.payload.size() + kPerLine;
  if (const uint64_t lost = lost_to_tell(cost)) {
    const std::string text = lost_line_(lost);
    put({message.logger_name, spdlog::level::warn, text});
  }
  give_back(cost);
}

void DescriptorSink::put(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  write_line(descriptor_, {line.data(), line.size()});  // a failing log must not stop the work
}

uint64_t DescriptorSink::lost_to_tell(size_t cost) {
  const std::lock_guard lock(waiting_mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (lost_ == 0 || (waiting_ > cost && now - told_ < kPause)) return 0;
  told_ = now;
  return std::exchange(lost_, 0);
}

void DescriptorSink::give_back(size_t cost) {
  const std::lock_guard lock(waiting_mutex_);
  waiting_ -= cost;
  if (waiting_ == 0) all_written_.notify_all();
}

}  // namespace gpupool::log
