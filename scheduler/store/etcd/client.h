// Calls to an etcd cluster: to the member that has answered last, else to the next one, until one answers or the time is up. Any thread.
#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "etcd.grpc.pb.h"
#include "protocol/transport/transport.h"
#include "scheduler/store/etcd/address.h"

namespace gpupool::scheduler::etcd {

// Goes on while the machine sleeps, since etcd's does.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;
  static time_point now();
};

class Client {
 public:
  // ErrorCode::invalid: a file cannot be read, or the files are for TLS and the address is not.
  static Result<std::unique_ptr<Client>> open(const Address& address, const transport::TlsOptions& tls);

  // The status of the last attempt. A call whose answer was lost is made again: it must bear that.
  grpc::Status range(const etcdserverpb::RangeRequest& request, etcdserverpb::RangeResponse& reply, Clock::time_point until);
  grpc::Status transact(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse& reply, Clock::time_point until);
  grpc::Status grant(const etcdserverpb::LeaseGrantRequest& request, etcdserverpb::LeaseGrantResponse& reply, Clock::time_point until);
  grpc::Status revoke(int64_t lease, Clock::time_point until);
  // `sent`: the lease lives at least its TTL from then on.
  grpc::Status keep_alive(int64_t lease, etcdserverpb::LeaseKeepAliveResponse& reply, Clock::time_point& sent, Clock::time_point until);
  // Until the key is changed by a later revision than that. False: the time is up, or it is not watched any more.
  bool await_change(const std::string& key, int64_t after_revision, Clock::time_point until);

 private:
  struct Member {
    explicit Member(const std::shared_ptr<grpc::Channel>& channel);
    const std::unique_ptr<etcdserverpb::KV::Stub> entries;
    const std::unique_ptr<etcdserverpb::Lease::Stub> leases;
    const std::unique_ptr<etcdserverpb::Watch::Stub> watches;
  };
  Client(std::vector<std::string> addresses, std::shared_ptr<grpc::ChannelCredentials> credentials);
  std::shared_ptr<Member> connect(const std::string& address) const;
  std::pair<std::shared_ptr<Member>, size_t> current() const;
  // The next call goes to the next member. A channel that has failed makes no progress while nobody waits for it: a new one is made.
  void leave(size_t place, const std::shared_ptr<Member>& failed);
  // `name` of the call, for the log.
  grpc::Status attempt(const char* name, Clock::time_point until, const std::function<grpc::Status(Member&, grpc::ClientContext&)>& call);

  const std::vector<std::string> addresses_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Member>> members_;
  size_t current_ = 0;
};

}  // namespace gpupool::scheduler::etcd
