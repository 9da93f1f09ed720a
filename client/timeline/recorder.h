// Keeps a process's events until a thread has written them to the file. At most kMostEvents are kept, and
// kMostNames names of kMostNameBytes in all; what does not fit, also in the file, is counted, and the last
// events of the file tell the counts.
//
// The thread starts with the first event and writes kWriteEvery. If it fails, for example without memory, the
// user is warned and later events are dropped. Never destroyed: threads may push events while the process
// exits. Any thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "client/timeline/name_table.h"
#include "client/timeline/trace_event.h"
#include "client/timeline/trace_file.h"

namespace gpupool::client::timeline {

class Recorder {
 public:
  static constexpr size_t kMostEvents = 32768;
  static constexpr size_t kMostNames = 16384;
  static constexpr size_t kMostNameBytes = 8u << 20;
  static constexpr size_t kLongestName = NameTable::kLongestName;
  static constexpr std::chrono::milliseconds kWriteEvery{100};

  using Warn = std::function<void(const std::string& message)>;
  Recorder(TraceFile file, Warn warn) : warn_(std::move(warn)), file_(std::move(file)) {}

  void push(const TraceEvent& event);
  // Returns the text as one that lives for good; longer texts are cut.
  const char* intern(std::string_view text);
  // Names of kernels by their handles, of which at most kMostNames are kept.
  void name_kernel(uint64_t handle, const char* name);
  const char* kernel_name(uint64_t handle);
  // The thread calls `look` each time before it writes. It must not block for long. An exception ends the
  // recording.
  void on_look(std::function<void()> look);
  void count_dropped(uint64_t events) { dropped_.fetch_add(events, std::memory_order_relaxed); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  // Writes what is there.
  void flush();
  // Writes what is there and `last`, whatever the size of the file. Later events are dropped.
  void finish(const TraceEvent& last);

 private:
  void run();
  void record();
  void stop_recording(const char* reason);
  void write(const std::vector<TraceEvent>& events);
  // Returns false if the events were dropped.
  bool append(const std::string& text, size_t events);

  const Warn warn_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  std::vector<TraceEvent> events_;
  std::vector<std::function<void()>> looks_;
  bool started_ = false;
  bool finished_ = false;
  NameTable names_{kMostNames, kMostNameBytes};
  std::map<uint64_t, const char*> kernels_;

  std::atomic<uint64_t> dropped_{0};
  std::mutex writing_;  // guards file_ and broken_; locked before mutex_
  TraceFile file_;
  bool broken_ = false;  // the file cannot be written any more
  bool warned_ = false;
};

}  // namespace gpupool::client::timeline
