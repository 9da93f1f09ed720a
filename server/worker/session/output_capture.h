// Forwards output of device code to the client: redirects the worker's descriptors 1 and 2 into pipes, whose
// contents are sent as messages. (The driver prints in the worker's process, whatever the program has done
// with its own descriptors.)
//
// flush() and drain(): any thread. The destructor restores the descriptors.
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "server/worker/session/outbox.h"

namespace gpupool::worker {

class OutputCapture {
 public:
  explicit OutputCapture(Outbox& outbox) : outbox_(outbox) {}
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  Result<void> start();
  // Call when device code is loaded: it may print from now on.
  void expect_output() { expected_.store(true, std::memory_order_relaxed); }
  bool expects_output() const { return expected_.load(std::memory_order_relaxed); }
  // Passes everything printed so far to the Outbox.
  void flush();
  // Empties the pipes, so that printing code does not block.
  void drain();
  // The reading ends, for poll(); -1 when nothing is captured.
  std::array<int, 2> descriptors() const { return {pipes_[0].reader, pipes_[1].reader}; }

 private:
  struct Pipe {
    int reader = -1;
    int saved = -1;  // the original descriptor
  };

  Outbox& outbox_;
  std::mutex mutex_;
  std::array<Pipe, 2> pipes_;
  bool started_ = false;
  std::atomic<bool> expected_{false};
};

}  // namespace gpupool::worker
