// Holds the lease of one claim on this node: requests it, keeps the lease file up to date, and requests it
// again if it was lost, as long as the claim is there.
//
// Owned by Claims. A thread of its own runs LeaseClient; the functions may be called by any other. A request
// that can never be granted ends the thread: state() has the reason.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "client/lease_client/lease_client.h"

namespace gpupool::kubernetes {

class ClaimLease {
 public:
  enum class Phase { waiting, granted, refused };
  struct State {
    Phase phase = Phase::waiting;
    std::string text;   // what it waits for, or why it was refused
    bool lost = false;  // it waits because a lease that it had has ended
  };

  // `folder`: where the lease file is to be. `granted_before`: a process before this one had the lease.
  ClaimLease(lease_client::LeaseClient::Settings settings, std::string folder, bool granted_before);
  // Returns the lease, unless release() has.
  ~ClaimLease();
  ClaimLease(const ClaimLease&) = delete;
  ClaimLease& operator=(const ClaimLease&) = delete;

  State state() const;
  // Blocks while the phase is waiting, at most until the deadline.
  State await(std::chrono::steady_clock::time_point deadline) const;
  // Returns the lease; blocks until the scheduler has acknowledged it, or for some seconds.
  void release();

 private:
  void run();
  bool acquire();
  Result<void> take(const pool::Granted& granted);

  const lease_client::LeaseClient::Settings settings_;
  const std::string file_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  State state_;
  bool ever_granted_;
  bool stopping_ = false;
  std::shared_ptr<lease_client::LeaseClient> client_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace gpupool::kubernetes
