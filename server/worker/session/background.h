// A session's background thread: forwards output of device code to the client; while one command takes long,
// sends signs of life to the client and logs the command; sends the client poold's requests to migrate; ends
// the session when poold shuts down; and when the client has gone, stops what the executor waits for, and
// exits the process if a command that has run for two seconds does not end.
#pragma once
#include <thread>

#include "server/worker/session/session.h"

namespace gpupool::worker {

class Background {
 public:
  Background(Session& session, int stop_descriptor);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  void run();

  Session& session_;
  int stop_descriptor_;  // -1: none
  int wake_;
  std::thread thread_;
};

}  // namespace gpupool::worker
