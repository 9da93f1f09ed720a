// Client of an etcd cluster. Each call goes to the member that answered last, and on failure to the next
// ones, until one answers or the deadline passes. Used by etcd_store.cc and keeper.h. Any thread; failures
// are gRPC statuses.
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

constexpr int kMaxPage = 32;  // entries of a range request; so the size of a reply has a limit

// CLOCK_BOOTTIME: keeps running while the machine is suspended, as etcd's lease does on other machines.
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
  // ErrorCode::invalid: a file cannot be read, or certificates are given for an address without TLS.
  static Result<std::unique_ptr<Client>> open(const Address& address, const transport::TlsOptions& tls);

  // These return the status of the last attempt. A call is repeated if its answer was lost, so it must be
  // idempotent.
  grpc::Status range(const etcdserverpb::RangeRequest& request, etcdserverpb::RangeResponse& reply,
                     Clock::time_point until);
  grpc::Status transact(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse& reply,
                        Clock::time_point until);
  grpc::Status grant(const etcdserverpb::LeaseGrantRequest& request, etcdserverpb::LeaseGrantResponse& reply,
                     Clock::time_point until);
  grpc::Status revoke(int64_t lease, Clock::time_point until);
  // Sets `sent` to the time of the request: the lease lives for at least its TTL from then on.
  grpc::Status keep_alive(int64_t lease, etcdserverpb::LeaseKeepAliveResponse& reply, Clock::time_point& sent,
                          Clock::time_point until);
  // Blocks until a revision later than `after_revision` changes the key. Returns false at the deadline, or if
  // the watch was cancelled or failed.
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
  // Directs further calls to the next member, and replaces the failed member's channel, because an idle gRPC
  // channel does not reconnect.
  void replace_member(size_t place, const std::shared_ptr<Member>& failed);
  // `name`: the call's name, for the log.
  grpc::Status attempt(const char* name, Clock::time_point until,
                       const std::function<grpc::Status(Member&, grpc::ClientContext&)>& call);

  const std::vector<std::string> addresses_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Member>> members_;
  size_t current_ = 0;
};

}  // namespace gpupool::scheduler::etcd
