#include "scheduler/store/etcd/keeper.h"

namespace gpupool::scheduler::etcd {

Keeper::Keeper(Client& client, int64_t lease, std::chrono::seconds time_to_live, Clock::time_point since)
    : client_(client), lease_(lease), time_to_live_(time_to_live), good_until_(0) {
  extend(since);
  thread_ = std::thread([this] { run(); });
}

Keeper::~Keeper() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  thread_.join();
}

void Keeper::run() {
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, time_to_live_ / 4, [this] { return ended_; })) {
    lock.unlock();
    etcdserverpb::LeaseKeepAliveResponse reply;
    Clock::time_point sent;
    const grpc::Status status = client_.keep_alive(lease_, reply, sent, good_until());
    lock.lock();
    if (status.ok() && reply.ttl() > 0)
      extend(sent);
    else if (status.ok())
      give_up();
    if (!is_good()) return;  // never recover a lease that may have expired
  }
}

}  // namespace gpupool::scheduler::etcd
