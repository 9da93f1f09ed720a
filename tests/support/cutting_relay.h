// A relay before the Unix socket of a server that passes bytes and descriptors, and cuts every connection
// after a random time. Runs threads of its own; all functions may be called by any thread. Throws
// std::runtime_error if it cannot listen.
#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/transport.h"

namespace gpupool::testing {

class CuttingRelay {
 public:
  // Listens at `path` for `server`, a shm endpoint. The time until a cut is `mean` on average, from the first
  // message of a client that has got the descriptors of its rings.
  CuttingRelay(std::string path, const transport::Endpoint& server, std::chrono::milliseconds mean,
               uint32_t seed);
  ~CuttingRelay();
  CuttingRelay(const CuttingRelay&) = delete;
  CuttingRelay& operator=(const CuttingRelay&) = delete;

  std::string url() const { return "shm://" + path_; }
  unsigned cuts() const { return cuts_; }

 private:
  struct Line;
  void accept(const transport::Endpoint& server);
  void pass(Line& line);

  const std::string path_;
  const std::chrono::milliseconds mean_;
  int listener_ = -1;
  std::atomic<bool> ending_{false};
  std::atomic<unsigned> cuts_{0};
  std::mutex mutex_;  // guards random_ and lines_
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::thread acceptor_;
};

}  // namespace gpupool::testing
