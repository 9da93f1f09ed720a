#include "tests/client/lease_client/fake_scheduler.h"

#include <chrono>
#include <stdexcept>

namespace gpupool::testing {

FakeScheduler::FakeScheduler(Serve serve, int port) : serve_(std::move(serve)), port_(port) {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (!server_ || port_ == 0) throw std::runtime_error("the fake scheduler gets no port");
}

FakeScheduler::~FakeScheduler() {
  server_->Shutdown(std::chrono::system_clock::now());
  const std::lock_guard lock(mutex_);  // ThreadSanitizer does not see that gRPC's threads have ended
}

std::vector<pool::AcquireCall> FakeScheduler::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

bool FakeScheduler::await_calls(size_t count) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return calls_.size() >= count; });
}

bool FakeScheduler::await_release(Stream& stream) {
  pool::AcquireCall call;
  while (stream.Read(&call)) {
    note(call);
    if (call.has_release()) return true;
  }
  return false;
}

pool::AcquireEvent FakeScheduler::queued(uint32_t place, uint32_t waiting, const std::string& why) {
  pool::AcquireEvent event;
  event.mutable_queued()->set_place(place);
  event.mutable_queued()->set_waiting(waiting);
  event.mutable_queued()->set_why(why);
  event.mutable_queued()->set_ticket("ticket");
  return event;
}

pool::AcquireEvent FakeScheduler::granted(const std::vector<std::pair<std::string, std::string>>& servers) {
  pool::AcquireEvent event;
  event.mutable_granted()->set_lease("the lease");
  event.mutable_granted()->set_secret("the secret");
  for (const auto& [address, token] : servers) {
    pool::Server* const server = event.mutable_granted()->add_servers();
    server->set_address(address);
    server->set_token(token);
  }
  return event;
}

grpc::Status FakeScheduler::Acquire(grpc::ServerContext* context, Stream* stream) {
  pool::AcquireCall first;
  if (!stream->Read(&first)) return grpc::Status::CANCELLED;
  note(first);
  return serve_(first, *stream, *context);
}

void FakeScheduler::note(const pool::AcquireCall& call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(call);
  changed_.notify_all();
}

}  // namespace gpupool::testing
