// spdlog's sink that writes to a descriptor. In the background mode it also limits the bytes that wait for
// spdlog's thread, and counts the lines dropped for that. log.cc uses it. Any thread.
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
  static constexpr size_t kMostBytes = 1 << 20;  // of waiting lines
  // Bytes of a line's entry in spdlog's queue, counted beside its text.
  static constexpr size_t kPerLine = 512;
  static constexpr size_t kMostLines = kMostBytes / kPerLine;
  static constexpr std::chrono::seconds kPause{1};  // between two reports of lost lines, while lines wait

  // `lost_line` makes the text of a line that reports the number of dropped lines.
  DescriptorSink(int descriptor, std::function<std::string(uint64_t lost)> lost_line);

  // Starts the background mode: each line must be reserved before it is logged.
  void expect_background() { background_ = true; }
  // Reserves room for a line. Returns false, and counts the line as lost, if too many bytes wait.
  bool reserve(size_t bytes);
  // Waits until all lines so far are written. Returns false on timeout.
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
  std::mutex waiting_mutex_;  // guards the members below; never held while writing
  std::condition_variable all_written_;
  size_t waiting_ = 0;  // bytes
  uint64_t lost_ = 0;
  std::chrono::steady_clock::time_point told_{};
};

}  // namespace gpupool::log
