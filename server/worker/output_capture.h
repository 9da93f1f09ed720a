// What device code prints: the worker's descriptors 1 and 2 lead into pipes, and from there to the client as messages.
// (The driver prints from within the worker's process, whatever the program did with its own descriptors.)
//
// Any thread may flush(). Destruction puts the old descriptors back.
#pragma once
#include <array>
#include <mutex>
#include <optional>

#include "server/worker/outbox.h"

namespace gpupool::worker {

class OutputCapture {
 public:
  explicit OutputCapture(Outbox& outbox) : outbox_(outbox) {}
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  Result<void> start();
  // Everything printed so far is with the outbox when this returns.
  void flush();
  // Moves what lies in the pipes, so that nobody who prints is held up.
  void drain();
  // The reading ends, to poll; -1 when nothing is captured.
  std::array<int, 2> descriptors() const { return {pipes_[0].reader, pipes_[1].reader}; }

 private:
  struct Pipe {
    int reader = -1;
    int saved = -1;  // what the descriptor was before
  };

  Outbox& outbox_;
  std::mutex mutex_;
  std::array<Pipe, 2> pipes_;
  bool started_ = false;
};

}  // namespace gpupool::worker
