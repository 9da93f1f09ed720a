// A session's background thread: moves what device code prints to the client, tells the client that the worker is alive
// while one command takes long, and ends the process when a command outlives its client.
#pragma once
#include <thread>

#include "server/worker/executor.h"

namespace gpupool::worker {

class Background {
 public:
  explicit Background(Executor& executor);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  void run();

  Executor& executor_;
  int wake_;
  std::thread thread_;
};

}  // namespace gpupool::worker
