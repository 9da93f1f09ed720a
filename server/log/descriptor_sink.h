// spdlog's sink for a descriptor. Where spdlog's thread writes, it also bounds what waits for that thread, in bytes, and counts the lines that
// have no room. Any thread.
#pragma once
#include <spdlog/sinks/base_sink.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace gpupool::log {

class DescriptorSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr size_t kMostBytes = 1 << 20;    // of lines that wait
  static constexpr size_t kPerLine = 512;          // counted for each line beside its text: what spdlog's queue takes for it
  static constexpr size_t kMostLines = kMostBytes / kPerLine;
  static constexpr std::chrono::seconds kPause{1};  // between two lines that tell of lost ones, while lines wait

  // `lost_line` makes the text that tells how many lines were dropped.
  DescriptorSink(int descriptor, std::function<std::string(uint64_t lost)> lost_line);

  // From now on each line must be reserved before it is logged.
  void expect_background() { background_ = true; }
  // False, and the line counts as lost, where too many wait.
  bool reserve(size_t bytes);
  // Waits until all lines so far are written. False: they were not in time.
  bool await_written(std::chrono::milliseconds patience);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  void put(const spdlog::details::log_msg& message);
  uint64_t lost_to_tell(size_t cost);
  void give_back(size_t cost);

  const int descriptor_;
  const std::function<std::string(uint64_t)> lost_line_;
  bool background_ = false;
  std::mutex waiting_mutex_;  // what follows; never held while writing
  std::condition_variable all_written_;
  size_t waiting_ = 0;  // bytes
  uint64_t lost_ = 0;
  std::chrono::steady_clock::time_point told_{};
};

}  // namespace gpupool::log
