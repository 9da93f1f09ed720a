#include "tests/server/poold/node/fake_scheduler.h"

#include <map>
#include <optional>
#include <set>
#include <stdexcept>

#include "tests/support/processes.h"

namespace gpupool::testing {

class FakeScheduler::Service final : public pool::Nodes::Service {
 public:
  explicit Service(const Settings& settings) : settings_(settings) {}

  grpc::Status Attend(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<pool::NodeOrders, pool::NodeReport>* stream) override {
    if (!settings_.leader.empty()) {
      context->AddTrailingMetadata("leader", settings_.leader);
      return {grpc::StatusCode::UNAVAILABLE, "not the leader"};
    }
    note_stream(*context);
    pool::NodeReport report;
    while (stream->Read(&report)) {
      if (!stream->Write(answer(report))) break;
    }
    return grpc::Status::OK;
  }

  const Settings settings_;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::optional<pool::NodeReport> latest;
  pool::Inventory inventory;
  std::string authorization;
  std::map<std::string, pool::EndLease> ends;
  std::set<std::string> ended;
  std::string fenced;
  int streams = 0;

 private:
  void note_stream(const grpc::ServerContext& context) {
    const auto shown = context.client_metadata().find("authorization");
    const std::lock_guard lock(mutex);
    ++streams;
    if (shown != context.client_metadata().end())
      authorization.assign(shown->second.data(), shown->second.size());
  }

  pool::NodeOrders answer(const pool::NodeReport& report) {
    const std::lock_guard lock(mutex);
    if (report.has_inventory()) inventory = report.inventory();
    latest = report;
    for (const pool::LeaseUse& use : report.leases()) {
      if (use.sessions() != 0) continue;
      ended.insert(use.lease());
      ends.erase(use.lease());
    }
    changed.notify_all();
    pool::NodeOrders orders;
    orders.set_heartbeat_ms(100);
    orders.set_now_ms(std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count() +
                      settings_.clock_ms);
    orders.set_fenced_because(fenced);
    for (const auto& [id, end] : ends) *orders.add_end() = end;
    return orders;
  }
};

FakeScheduler::FakeScheduler(Settings settings) : service_(std::make_unique<Service>(settings)) {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(settings.address, settings.credentials, &port_);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (!server_ || port_ == 0)
    throw std::runtime_error("the fake scheduler cannot listen on " + settings.address);
}

FakeScheduler::~FakeScheduler() {
  server_->Shutdown(std::chrono::system_clock::now());
}

void FakeScheduler::end(const std::string& lease, const std::string& reason, uint32_t grace_ms) {
  const std::lock_guard lock(service_->mutex);
  pool::EndLease& end = service_->ends[lease];
  end.set_lease(lease);
  end.set_reason(reason);
  end.set_grace_ms(grace_ms);
}

void FakeScheduler::fence(const std::string& why) {
  const std::lock_guard lock(service_->mutex);
  service_->fenced = why;
}

bool FakeScheduler::await(const std::function<bool(const pool::NodeReport&)>& enough) {
  std::unique_lock lock(service_->mutex);
  return service_->changed.wait_for(lock, kPatience,
                                    [&] { return service_->latest && enough(*service_->latest); });
}

bool FakeScheduler::await_sessions(const std::string& lease, int sessions) {
  return await([&](const pool::NodeReport& report) {
    int found = -1;
    for (const pool::LeaseUse& use : report.leases()) {
      if (use.lease() == lease) found = static_cast<int>(use.sessions());
    }
    return found == sessions;
  });
}

bool FakeScheduler::await_end(const std::string& lease) {
  std::unique_lock lock(service_->mutex);
  return service_->changed.wait_for(lock, kPatience, [&] { return service_->ended.contains(lease); });
}

pool::Inventory FakeScheduler::inventory() const {
  const std::lock_guard lock(service_->mutex);
  return service_->inventory;
}

std::string FakeScheduler::authorization() const {
  const std::lock_guard lock(service_->mutex);
  return service_->authorization;
}

int FakeScheduler::streams() const {
  const std::lock_guard lock(service_->mutex);
  return service_->streams;
}

}  // namespace gpupool::testing
