#include "scheduler/store/etcd/client.h"

#include <time.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

#include "common/admission/received_limits.h"
#include "common/files/exposure.h"
#include "common/log/log.h"
#include "common/text/printable.h"
#include "scheduler/store/etcd/redo_log.h"

namespace gpupool::scheduler::etcd {
namespace {

using namespace std::chrono_literals;
using namespace etcdserverpb;

constexpr auto kAttempt = 1s;
constexpr auto kPauseAfterAll = 50ms;  // pause after all members have failed
// A page of the largest entries, which the redo log makes, with their keys.
constexpr int kMaxReplyBytes = kMaxPage * static_cast<int>(kMaxBytes + kMaxBytes / 4 + 4096);
constexpr int kKeepaliveMs = 10'000, kKeepaliveTimeoutMs = 5'000;  // etcd allows a ping every 5 s

// Returns true for failures that another member may not have; for the other codes each member would answer
// the same.
bool may_succeed_elsewhere(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::UNIMPLEMENTED: return false;
    default: return true;
  }
}

Result<void> read_file(const std::string& path, std::string& out) {
  if (path.empty()) return {};
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::invalid, "cannot read '" + path + "'"};
  out.assign(std::istreambuf_iterator<char>(file), {});
  return {};
}

Result<std::shared_ptr<grpc::ChannelCredentials>> credentials(const Address& address,
                                                              const transport::TlsOptions& tls) {
  if (!address.tls) {
    if (tls.ca.empty() && tls.certificate.empty()) return grpc::InsecureChannelCredentials();
    return Error{ErrorCode::invalid,
                 "certificates require an etcds:// address, but the store's address is etcd://"};
  }
  if (const auto checked = files::check_secret(tls.key); !checked) return checked.error();
  grpc::SslCredentialsOptions options;
  for (const auto& [file, out] : {std::pair(&tls.ca, &options.pem_root_certs),
                                  {&tls.certificate, &options.pem_cert_chain},
                                  {&tls.key, &options.pem_private_key}}) {
    if (const auto good = read_file(*file, *out); !good) return good.error();
  }
  return grpc::SslCredentials(options);
}

}  // namespace

Clock::time_point Clock::now() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

Client::Member::Member(const std::shared_ptr<grpc::Channel>& channel)
    : entries(KV::NewStub(channel)), leases(Lease::NewStub(channel)), watches(Watch::NewStub(channel)) {}

Client::Client(std::vector<std::string> addresses, std::shared_ptr<grpc::ChannelCredentials> credentials)
    : addresses_(std::move(addresses)), credentials_(std::move(credentials)) {
  for (const std::string& address : addresses_) members_.push_back(connect(address));
}

Result<std::unique_ptr<Client>> Client::open(const Address& address, const transport::TlsOptions& tls) {
  auto trust = credentials(address, tls);
  if (!trust) return trust.error();
  return std::unique_ptr<Client>(new Client(address.endpoints, std::move(*trust)));
}

std::shared_ptr<Client::Member> Client::connect(const std::string& address) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  limit_received(arguments, kMaxReplyBytes);
  return std::make_shared<Member>(grpc::CreateCustomChannel(address, credentials_, arguments));
}

std::pair<std::shared_ptr<Client::Member>, size_t> Client::current() const {
  const std::lock_guard lock(mutex_);
  return {members_[current_], current_};
}

void Client::replace_member(size_t place, const std::shared_ptr<Member>& failed) {
  auto fresh = connect(addresses_[place]);
  const std::lock_guard lock(mutex_);
  if (members_[place] != failed) return;  // another thread has replaced it already
  members_[place].swap(fresh);
  if (current_ == place) current_ = (place + 1) % members_.size();
}

grpc::Status Client::attempt(const char* name, Clock::time_point until,
                             const std::function<grpc::Status(Member&, grpc::ClientContext&)>& call) {
  grpc::Status status(grpc::StatusCode::DEADLINE_EXCEEDED, "deadline exceeded");
  for (size_t failed = 0;;) {
    const auto left = until - Clock::now();
    if (left <= 0s) return status;
    const auto [member, place] = current();
    grpc::ClientContext context;
    // Limit each attempt to kAttempt, so that there is time to try other members.
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::microseconds>(std::min<Clock::duration>(left, kAttempt)));
    context.AddMetadata("hasleader", "true");  // a member without a Raft leader fails at once
    status = call(*member, context);
    if (!status.ok()) status = grpc::Status(status.error_code(), printable_message(status.error_message()));
    if (!may_succeed_elsewhere(status.error_code())) return status;
    status = grpc::Status(status.error_code(), addresses_[place] + ": " + status.error_message());
    log::debug("store_attempt_failed", {{"call", name}, {"reason", status.error_message()}});
    replace_member(place, member);
    if (++failed % addresses_.size() == 0)
      std::this_thread::sleep_for(
          std::min<Clock::duration>(kPauseAfterAll, std::max<Clock::duration>(0s, until - Clock::now())));
  }
}

grpc::Status Client::range(const RangeRequest& request, RangeResponse& reply, Clock::time_point until) {
  return attempt("range", until, [&](Member& member, grpc::ClientContext& context) {
    return member.entries->Range(&context, request, &reply);
  });
}

grpc::Status Client::transact(const TxnRequest& request, TxnResponse& reply, Clock::time_point until) {
  return attempt("transact", until, [&](Member& member, grpc::ClientContext& context) {
    return member.entries->Txn(&context, request, &reply);
  });
}

grpc::Status Client::grant(const LeaseGrantRequest& request, LeaseGrantResponse& reply,
                           Clock::time_point until) {
  return attempt("grant", until, [&](Member& member, grpc::ClientContext& context) {
    return member.leases->LeaseGrant(&context, request, &reply);
  });
}

grpc::Status Client::revoke(int64_t lease, Clock::time_point until) {
  LeaseRevokeRequest request;
  request.set_id(lease);
  return attempt("revoke", until, [&](Member& member, grpc::ClientContext& context) {
    LeaseRevokeResponse reply;
    return member.leases->LeaseRevoke(&context, request, &reply);
  });
}

grpc::Status Client::keep_alive(int64_t lease, LeaseKeepAliveResponse& reply, Clock::time_point& sent,
                                Clock::time_point until) {
  LeaseKeepAliveRequest request;
  request.set_id(lease);
  return attempt("keep_alive", until, [&](Member& member, grpc::ClientContext& context) -> grpc::Status {
    sent = Clock::now();
    const auto stream = member.leases->LeaseKeepAlive(&context);
    const bool answered = stream->Write(request) && stream->Read(&reply);
    stream->WritesDone();
    if (answered) {
      context.TryCancel();  // one answer suffices
      stream->Finish();
      return grpc::Status::OK;
    }
    const grpc::Status status = stream->Finish();
    return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no reply") : status;
  });
}

bool Client::await_change(const std::string& key, int64_t after_revision, Clock::time_point until) {
  const auto [member, place] = current();
  grpc::ClientContext context;
  const auto left = std::max<Clock::duration>(0s, until - Clock::now());
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::microseconds>(left));
  context.AddMetadata("hasleader", "true");
  const auto stream = member->watches->Watch(&context);
  WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_start_revision(after_revision + 1);
  bool changed = false;
  WatchResponse response;
  if (stream->Write(request)) {
    while (!changed && stream->Read(&response) && !response.canceled()) changed = response.events_size() > 0;
  }
  context.TryCancel();
  stream->Finish();
  return changed;
}

}  // namespace gpupool::scheduler::etcd
