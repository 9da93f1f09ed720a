// Keeps a lease of etcd's alive, and knows without asking whether it still is. Owns a thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "scheduler/store/etcd/client.h"

namespace gpupool::scheduler::etcd {

class Keeper {
 public:
  // `since`: when the lease was asked for. `client` outlives this.
  Keeper(Client& client, int64_t lease, std::chrono::seconds time_to_live, Clock::time_point since);
  ~Keeper();  // the lease is left as it is

  int64_t lease() const { return lease_; }
  // Until then etcd cannot have ended it, unless it was told to. Any thread.
  Clock::time_point good_until() const { return Clock::time_point(Clock::duration(good_until_)); }
  bool is_good() const { return Clock::now() < good_until(); }
  // It is known to be over.
  void give_up() { good_until_ = 0; }

 private:
  void run();
  // Clocks of two machines do not run alike: nine tenths of the time.
  void extend(Clock::time_point since) { good_until_ = (since + time_to_live_ - time_to_live_ / 10).time_since_epoch().count(); }

  Client& client_;
  const int64_t lease_;
  const Clock::duration time_to_live_;
  std::atomic<Clock::rep> good_until_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace gpupool::scheduler::etcd
