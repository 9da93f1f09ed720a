// The faults of the chaos test that move leases between hosts while their programs run.
#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "tests/chaos/chaos.h"

namespace gpupool::testing {
namespace {

constexpr int64_t kDrainedFrom = 1'000, kDrainedTo = 5'000;
constexpr int64_t kAgain = 500;

}  // namespace

// No program may notice, whatever happens to the hosts and to the scheduler meanwhile.
bool Chaos::move_lease() {
  const auto scheduler = leader();
  if (!scheduler) return false;
  std::vector<pool::MoveRequest> requests;
  for (const auto& job : jobs_->running()) {
    for (const std::string& node : job->nodes) {
      pool::MoveRequest& request = requests.emplace_back();
      request.set_lease(job->lease);
      request.set_from(node);
    }
  }
  std::shuffle(requests.begin(), requests.end(), random_);
  for (const pool::MoveRequest& request : requests) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTime);
    pool::LeaseState state;
    // Most are refused: no other host has room, or the lease has left the node.
    if (scheduler->Move(&context, request, &state).ok()) return true;
  }
  return false;
}

// Moves all leases from a host, and opens it again before they may all have left.
bool Chaos::drain_host() {
  const auto scheduler = leader();
  const GpuMachine* const machine = running_gpus();
  if (!scheduler || !machine) return false;
  const std::string name = machine->host().name();
  pool::DrainRequest request;
  request.set_node(name);
  request.set_reason("the chaos test drains it");
  request.set_move(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTime);
  pool::NodeState state;
  // A call without an answer may have had its effect.
  const auto status = scheduler->Drain(&context, request, &state);
  later(time_between(kDrainedFrom, kDrainedTo), [this, name] { undrain(name); });
  return status.ok();
}

void Chaos::undrain(const std::string& node) {
  const auto scheduler = leader();
  pool::UndrainRequest request;
  request.set_node(node);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTime);
  pool::NodeState state;
  if (scheduler && scheduler->Undrain(&context, request, &state).ok()) return;
  later(kAgain, [this, node] { undrain(node); });
}

}  // namespace gpupool::testing
