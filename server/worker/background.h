// A session's background thread: moves what device code prints to the client, tells the client that the worker is alive
// while one command takes long and logs which one, ends the session when poold shuts down, and the process when a command outlives its
// client.
#pragma once
#include <thread>

#include "server/worker/executor.h"

namespace gpupool::worker {

class Background {
 public:
  Background(Executor& executor, int stop_descriptor);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  void run();

  Executor& executor_;
  int stop_descriptor_;  // -1: none
  int wake_;
  std::thread thread_;
};

}  // namespace gpupool::worker
