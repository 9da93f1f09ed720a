#include "tests/scheduler/service/clients.h"

#include <atomic>

#include "common/text/gpu_uuid.h"
#include "protocol/lease/token.h"
#include "tests/support/processes.h"

namespace gpupool::testing {
namespace {

constexpr uint64_t kGpuMemory = uint64_t{16} << 30;

int64_t time_of_day() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::shared_ptr<grpc::Channel> connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::string some_uuid(uint64_t node, uint64_t gpu) {
  std::string bytes(16, '\1');
  for (int i = 0; i < 7; ++i) bytes[i] = static_cast<char>(node >> 8 * i);
  bytes[15] = static_cast<char>(gpu);
  return gpu_uuid_text(bytes);
}

class SimulatedPoold::NodeConnection : public grpc::ClientBidiReactor<pool::NodeReport, pool::NodeOrders> {
 public:
  explicit NodeConnection(SimulatedPoold& poold)
      : poold_(poold), stub_(pool::Nodes::NewStub(poold.channel_)) {}
  // Requires the poold's lock.
  void start() {
    if (!poold_.has_.token.empty()) context_.AddMetadata("authorization", "Bearer " + poold_.has_.token);
    stub_->async()->Attend(&context_, this);
    AddHold();
    out_ = poold_.report(true);
    writing_ = true;
    StartWrite(&out_);
    StartRead(&in_);
    StartCall();
  }
  void say() {
    if (over_) return;
    if (std::exchange(writing_, true)) {
      again_ = true;
      return;
    }
    out_ = poold_.report(false);
    poold_.ended_.clear();
    StartWrite(&out_);
  }
  void cut() { context_.TryCancel(); }
  bool done() const { return done_; }

 private:
  void leave(const std::string& lease) {  // requires the poold's lock
    poold_.ended_.insert(lease);
    poold_.all_ended_.insert(lease);
    if (poold_.usage_) poold_.usage_->ended(poold_.has_.name, lease);
  }
  void finish() {  // requires the poold's lock
    if (!std::exchange(over_, true)) RemoveHold();
  }
  void OnWriteDone(bool good) override {
    const std::lock_guard lock(poold_.mutex_);
    writing_ = false;
    if (!good) return;
    if (std::exchange(again_, false)) say();
  }
  void OnReadDone(bool good) override {
    const std::lock_guard lock(poold_.mutex_);
    if (!good) return finish();
    poold_.registered_ = true;
    poold_.fenced_ = in_.fenced_because();
    for (const pool::EndLease& end : in_.end()) leave(end.lease());
    poold_.stuck_.clear();
    for (const pool::MoveLease& move : in_.move()) {
      if (poold_.allow_moves_)
        leave(move.lease());
      else
        poold_.stuck_.insert(move.lease());
    }
    if (in_.end_size() + in_.move_size() > 0 && poold_.stuck_.empty()) say();
    StartRead(&in_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(poold_.mutex_);
    poold_.registered_ = false;
    poold_.last_error_ = status.error_message();
    over_ = done_ = true;
    poold_.changed_.notify_all();
  }

  SimulatedPoold& poold_;
  const std::unique_ptr<pool::Nodes::Stub> stub_;
  grpc::ClientContext context_;
  pool::NodeReport out_;
  pool::NodeOrders in_;
  bool writing_ = false, again_ = false, over_ = false, done_ = false;
};

SimulatedPoold::SimulatedPoold(std::shared_ptr<grpc::Channel> channel, Has has, Usage* usage)
    : channel_(std::move(channel)), has_(std::move(has)), usage_(usage) {}

SimulatedPoold::~SimulatedPoold() {
  cut();
}

// Waits for the end of the stream: the last reference to a channel must not be dropped on a thread of gRPC.
void SimulatedPoold::cut() {
  std::unique_lock lock(mutex_);
  if (!connection_) return;
  connection_->cut();
  changed_.wait(lock, [this] { return connection_->done(); });
  const auto ended = std::move(connection_);
  lock.unlock();
}

void SimulatedPoold::send_heartbeat() {
  const std::lock_guard lock(mutex_);
  if (connection_ && !connection_->done()) return connection_->say();
  connection_ = std::make_unique<NodeConnection>(*this);
  connection_->start();
}

bool SimulatedPoold::is_registered() const {
  const std::lock_guard lock(mutex_);
  return registered_;
}
std::string SimulatedPoold::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}
std::string SimulatedPoold::fenced() const {
  const std::lock_guard lock(mutex_);
  return fenced_;
}
bool SimulatedPoold::has_ended(const std::string& lease) const {
  const std::lock_guard lock(mutex_);
  return all_ended_.contains(lease);
}

void SimulatedPoold::allow_moves(bool allow) {
  const std::lock_guard lock(mutex_);
  allow_moves_ = allow;
}

void SimulatedPoold::restart() {
  cut();
  const std::lock_guard lock(mutex_);
  ++boot_;
}

pool::NodeReport SimulatedPoold::report(bool first) const {
  pool::NodeReport report;
  report.set_now_ms(time_of_day());
  report.set_ready(true);
  for (const std::string& lease : first ? all_ended_ : ended_) report.add_leases()->set_lease(lease);
  for (const std::string& lease : stuck_) {
    pool::LeaseUse& use = *report.add_leases();
    use.set_lease(lease);
    use.set_sessions(1);
    use.set_cannot_move("it is stuck\x1b[2J");
  }
  for (int gpu = 0; has_.reports_use && gpu < has_.gpus; ++gpu) {
    const uint64_t milli = (has_.number * 137 + static_cast<uint64_t>(gpu) * 331) % 1001;
    pool::GpuUse& use = *report.add_gpus();
    use.set_uuid(some_uuid(has_.number, static_cast<uint64_t>(gpu)));
    use.set_memory_used_bytes(kGpuMemory / 1000 * milli);
    use.set_gpu_nanoseconds(static_cast<uint64_t>(report.now_ms()) * milli * 1000);
  }
  if (!first) return report;
  pool::Inventory& inventory = *report.mutable_inventory();
  inventory.set_node(has_.name);
  inventory.set_rack(has_.rack);
  std::string boot = "pretended-boot-";
  inventory.set_boot(boot + static_cast<char>('a' + boot_));
  inventory.add_addresses("tcp://" + has_.name + ":9700");
  for (int gpu = 0; gpu < has_.gpus; ++gpu) {
    pool::Gpu& one = *inventory.add_gpus();
    one.set_uuid(some_uuid(has_.number, static_cast<uint64_t>(gpu)));
    one.set_model("pretended");
    one.set_memory_bytes(kGpuMemory);
  }
  inventory.set_version("test");
  return report;
}

SimulatedPoolds::SimulatedPoolds(const std::string& address, int count, int gpus, Usage* usage,
                                 std::chrono::milliseconds every) {
  for (int i = 0; i < count; ++i) {
    poolds_.push_back(std::make_unique<SimulatedPoold>(
        connect(address), SimulatedPoold::Has{"n" + std::to_string(i), static_cast<uint64_t>(i), gpus, ""},
        usage));
    poolds_.back()->send_heartbeat();
  }
  heartbeats_ = std::thread([this, every] {
    std::unique_lock lock(mutex_);
    while (!end_.wait_for(lock, every, [this] { return ended_; })) {
      for (const auto& poold : poolds_) poold->send_heartbeat();
    }
  });
}

SimulatedPoolds::~SimulatedPoolds() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  heartbeats_.join();
}

bool SimulatedPoolds::await() const {
  return eventually([this] {
    return std::all_of(poolds_.begin(), poolds_.end(),
                       [](const auto& poold) { return poold->is_registered(); });
  });
}

struct LeaseClient::Call : grpc::ClientBidiReactor<pool::AcquireCall, pool::AcquireEvent> {
  std::unique_ptr<pool::Leases::Stub> stub;
  grpc::ClientContext context;
  pool::AcquireCall first, last;
  pool::AcquireEvent in;
  OnEvent on_event;
  OnEnd on_end;
  std::mutex mutex;
  std::condition_variable changed;
  bool writing = true, wants_release = false, done = false;
  uint64_t grants = 0;
  std::shared_ptr<const pool::Granted> granted;
  std::shared_ptr<const pool::Queued> queued;
  std::shared_ptr<const pool::Ended> ended;
  grpc::Status status;

  void start() {
    stub->async()->Acquire(&context, this);
    AddHold();
    StartWrite(&first);
    StartRead(&in);
    StartCall();
  }
  void release() {
    const std::lock_guard lock(mutex);
    if (done || wants_release) return;
    wants_release = true;
    if (!std::exchange(writing, true)) write_release();
  }
  void write_release() {
    last.mutable_release();
    StartWrite(&last);
  }
  void OnWriteDone(bool good) override {
    const std::lock_guard lock(mutex);
    writing = false;
    if (good && wants_release && !last.has_release()) {
      writing = true;
      write_release();
    }
  }
  void OnReadDone(bool good) override {
    if (!good) {
      {
        const std::lock_guard lock(mutex);
        wants_release = true;  // prevents further writes
        done = true;
      }
      return RemoveHold();
    }
    {
      const std::lock_guard lock(mutex);
      if (in.has_granted()) {
        granted = std::make_shared<pool::Granted>(in.granted());
        ++grants;
      }
      if (in.has_queued()) queued = std::make_shared<pool::Queued>(in.queued());
      if (in.has_ended()) ended = std::make_shared<pool::Ended>(in.ended());
      changed.notify_all();
    }
    if (on_event) on_event(in);
    StartRead(&in);
  }
  void OnDone(const grpc::Status& how) override {
    if (on_end) on_end(how);
    const std::lock_guard lock(mutex);
    status = how;
    finished = true;
    changed.notify_all();
  }
  bool finished = false;

  template <class Condition>
  bool await(Condition condition) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kPatience, [&] { return finished || condition(); });
    return condition();
  }
};

LeaseClient::LeaseClient(const std::shared_ptr<grpc::Channel>& channel, const pool::AcquireCall& first,
                         const std::string& token, OnEvent on_event, OnEnd on_end)
    : call_(std::make_unique<Call>()) {
  call_->stub = pool::Leases::NewStub(channel);
  if (!token.empty()) call_->context.AddMetadata("authorization", "Bearer " + token);
  call_->first = first;
  call_->on_event = std::move(on_event);
  call_->on_end = std::move(on_end);
  call_->start();
}

// Waits for the end of the call: the last reference to a channel must not be dropped on a thread of gRPC.
LeaseClient::~LeaseClient() {
  cut();
  std::unique_lock lock(call_->mutex);
  call_->changed.wait(lock, [this] { return call_->finished; });
}

void LeaseClient::release() {
  call_->release();
}
void LeaseClient::cut() {
  call_->context.TryCancel();
  call_->await([] { return false; });
}

std::shared_ptr<const pool::Granted> LeaseClient::granted(uint64_t least) {
  return call_->await([&] { return call_->grants >= least; }) ? call_->granted : nullptr;
}
std::shared_ptr<const pool::Queued> LeaseClient::queued(uint32_t place) {
  return call_->await([&] { return call_->queued && call_->queued->place() == place; }) ? call_->queued
                                                                                        : nullptr;
}
std::shared_ptr<const pool::Ended> LeaseClient::ended() {
  return call_->await([&] { return call_->ended != nullptr; }) ? call_->ended : nullptr;
}
grpc::Status LeaseClient::status() {
  call_->await([] { return false; });
  return call_->status;
}
std::string LeaseClient::leader() const {
  const auto found = call_->context.GetServerTrailingMetadata().find("leader");
  return found == call_->context.GetServerTrailingMetadata().end()
             ? ""
             : std::string(found->second.data(), found->second.size());
}

pool::AcquireCall request_call(uint32_t gpus, uint32_t milli) {
  pool::AcquireCall call;
  call.mutable_request()->set_gpus(gpus);
  call.mutable_request()->set_compute_milli(milli);
  call.mutable_request()->set_priority(lease::NORMAL);
  return call;
}

pool::AcquireCall resume_call(const pool::Granted& granted) {
  pool::AcquireCall call;
  call.mutable_resume()->set_lease(granted.lease());
  call.mutable_resume()->set_secret(granted.secret());
  return call;
}

}  // namespace gpupool::testing
