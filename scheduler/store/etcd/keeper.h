// Keeps an etcd lease alive with a thread of its own, and tells locally until when the lease is certain to
// live. Used by etcd_store.cc. If etcd cannot be reached, is_good() becomes false before the lease can
// expire.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "scheduler/store/etcd/client.h"

namespace gpupool::scheduler::etcd {

class Keeper {
 public:
  // `since`: when the lease was requested. `client` must outlive this object.
  Keeper(Client& client, int64_t lease, std::chrono::seconds time_to_live, Clock::time_point since);
  ~Keeper();  // joins the thread; does not revoke the lease

  int64_t lease() const { return lease_; }
  // Until this time etcd cannot have expired the lease. Any thread.
  Clock::time_point good_until() const { return Clock::time_point(Clock::duration(good_until_)); }
  bool is_good() const { return Clock::now() < good_until(); }
  // Marks the lease as lost.
  void give_up() { good_until_ = 0; }

 private:
  void run();
  // Uses nine tenths of the TTL, because the clocks of two machines run at different rates.
  void extend(Clock::time_point since) {
    good_until_ = (since + time_to_live_ - time_to_live_ / 10).time_since_epoch().count();
  }

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
