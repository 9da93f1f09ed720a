#include "client/kubernetes/claim_lease.h"

#include <utility>

#include "client/lease/file.h"
#include "client/lease_client/servers.h"

namespace gpupool::kubernetes {
namespace {

constexpr std::chrono::seconds kBeforeNextRequest{5};
constexpr mode_t kForEveryUser = 0644;  // the folder above keeps out users of the host

}  // namespace

ClaimLease::ClaimLease(lease_client::LeaseClient::Settings settings, std::string folder, bool granted_before)
    : settings_(std::move(settings)),
      file_(std::move(folder) + "/servers"),
      ever_granted_(granted_before),
      thread_([this] { run(); }) {}

ClaimLease::~ClaimLease() {
  release();
}

ClaimLease::State ClaimLease::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

ClaimLease::State ClaimLease::await(std::chrono::steady_clock::time_point deadline) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return state_.phase != Phase::waiting || stopping_; });
  return state_;
}

void ClaimLease::release() {
  std::shared_ptr<lease_client::LeaseClient> client;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    client = client_;
  }
  changed_.notify_all();
  if (client) client->stop();
  if (thread_.joinable()) thread_.join();
}

void ClaimLease::run() {
  while (acquire()) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kBeforeNextRequest, [&] { return stopping_; });
    if (stopping_) return;
  }
}

// Runs one request to its end. Returns false if there is to be no other.
bool ClaimLease::acquire() {
  const auto client = std::make_shared<lease_client::LeaseClient>(
      settings_, [this](const pool::Granted& granted) { return take(granted); },
      [this](const std::string& line) {
        const std::lock_guard lock(mutex_);
        if (state_.phase == Phase::waiting) state_.text = line;
      });
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    client_ = client;
  }
  const Result<void> ended = client->run();
  const std::lock_guard lock(mutex_);
  client_.reset();
  if (stopping_) return false;
  const std::string why = ended ? "the lease has ended" : ended.error().message;
  const bool refused = !ever_granted_ && !ended && ended.error().code != ErrorCode::unavailable;
  // A scheduler that cannot be reached has not ended the lease: programs go on, and the lease file stays.
  const bool lost = ever_granted_ && (ended || ended.error().code != ErrorCode::unavailable);
  state_.lost = lost;
  state_.phase = refused ? Phase::refused : Phase::waiting;
  state_.text = why;
  changed_.notify_all();
  if (lost) (void)client::write_lease_file(file_, {}, kForEveryUser);
  return !refused;
}

Result<void> ClaimLease::take(const pool::Granted& granted) {
  const auto servers = lease_client::servers_of(granted);
  if (!servers) return servers.error();
  if (const auto written = client::write_lease_file(file_, *servers, kForEveryUser); !written) return written;
  {
    const std::lock_guard lock(mutex_);
    state_ = {};
    state_.phase = Phase::granted;
    ever_granted_ = true;
  }
  changed_.notify_all();
  return {};
}

}  // namespace gpupool::kubernetes
