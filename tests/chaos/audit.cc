#include "tests/chaos/audit.h"

#include <grpcpp/grpcpp.h>

#include "tests/support/poold_process.h"

namespace gpupool::testing {
namespace {

constexpr std::chrono::seconds kHistoryTime{5};
// Tolerance for gRPC's own descriptors; a larger growth is a leak.
constexpr size_t kMoreDescriptors = 8;

template <class Reply, class Stub, class Call, class Request>
bool ask(Stub& stub, Call call, const Request& request, Reply& reply, std::vector<std::string>& wrong) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kHistoryTime);
  const grpc::Status status = (stub.*call)(&context, request, &reply);
  if (!status.ok()) wrong.push_back("no reply: " + status.error_message());
  return status.ok();
}

}  // namespace

void Audit::check_scheduler(pool::PoolAdmin::Stub& scheduler, std::vector<std::string>& wrong) const {
  using Stub = pool::PoolAdmin::Stub;
  pool::ListNodesReply nodes;
  pool::ListPoolGpusReply gpus;
  pool::ListLeasesReply leases;
  pool::ListQueueReply queue;
  if (!ask(scheduler, &Stub::ListNodes, pool::ListNodesRequest(), nodes, wrong) ||
      !ask(scheduler, &Stub::ListGpus, pool::ListGpusRequest(), gpus, wrong) ||
      !ask(scheduler, &Stub::ListLeases, pool::ListLeasesRequest(), leases, wrong) ||
      !ask(scheduler, &Stub::ListQueue, pool::ListQueueRequest(), queue, wrong)) {
    return;
  }
  if (nodes.nodes_size() != static_cast<int>(poolds_.size()))
    wrong.push_back("the scheduler knows " + std::to_string(nodes.nodes_size()) + " nodes");
  for (const auto& node : nodes.nodes()) {
    if (node.condition() != pool::NodeState::OPEN)
      wrong.push_back("node " + node.name() + " is " + pool::NodeState::Condition_Name(node.condition()) +
                      ": " + node.because());
    if (node.leases() != 0 || node.cpu_milli_leased() != 0 || node.host_memory_bytes_leased() != 0)
      wrong.push_back("node " + node.name() + " has leased resources");
  }
  for (const auto& gpu : gpus.gpus()) {
    const uint64_t taken = gpu.compute_milli_leased() + gpu.memory_bytes_leased() +
                           gpu.compute_milli_reserved() + gpu.memory_bytes_reserved() + gpu.leases();
    if (taken == 0) continue;
    wrong.push_back("of " + gpu.node() + "'s GPU " + std::to_string(gpu.index()) + " " +
                    std::to_string(gpu.compute_milli_leased()) + " thousandths and " +
                    std::to_string(gpu.memory_bytes_leased()) + " bytes are leased, " +
                    std::to_string(gpu.compute_milli_reserved()) + " thousandths reserved");
  }
  for (const auto& lease : leases.leases())
    wrong.push_back("remaining lease " + lease.id() + " of " + lease.program() +
                    (lease.ending() ? ", ending: " + lease.end_reason()
                     : lease.held() ? ", held"
                                    : ", not held"));
  for (const auto& waiting : queue.waiting())
    wrong.push_back(waiting.id() + " is still waiting: " + waiting.why());
}

void Audit::check_poold(const GpuMachine& machine, std::vector<std::string>& wrong) {
  using Stub = admin::Admin::Stub;
  const std::string& name = machine.host().name();
  const size_t before = wrong.size();
  const auto poold = machine.admin();
  admin::Poold health;
  admin::ListSessionsReply sessions;
  admin::ListTenantsReply tenants;
  admin::ListGpusReply gpus;
  if (!machine.runs() || !ask(*poold, &Stub::Health, admin::HealthRequest(), health, wrong) ||
      !ask(*poold, &Stub::ListSessions, admin::ListSessionsRequest(), sessions, wrong) ||
      !ask(*poold, &Stub::ListTenants, admin::ListTenantsRequest(), tenants, wrong) ||
      !ask(*poold, &Stub::ListGpus, admin::ListGpusRequest(), gpus, wrong)) {
    wrong.push_back(name + "'s poold does not answer");
    return;
  }
  const auto none = [&](uint64_t count, const std::string& what) {
    if (count != 0) wrong.push_back(name + " has " + std::to_string(count) + " " + what);
  };
  none(health.sessions() + static_cast<uint64_t>(sessions.sessions_size()), "sessions");
  none(health.clients_waiting(), "clients that wait");
  none(health.pool().leases(), "leases");
  for (const auto& tenant : tenants.tenants()) {  // entries of leases ("TENANT/LEASE") must be gone
    if (tenant.sessions() != 0 || tenant.name().find('/') != std::string::npos)
      wrong.push_back(name + " has tenant " + tenant.name());
  }
  for (const auto& gpu : gpus.gpus()) {
    none(gpu.memory_used_bytes(), "bytes in use of GPU " + std::to_string(gpu.index()));
    none(gpu.memory_sold_bytes(), "bytes allotted of GPU " + std::to_string(gpu.index()));
    none(gpu.compute_sold_milli(), "thousandths allotted of GPU " + std::to_string(gpu.index()));
  }
  size_t workers = 0;
  for (const Running& process : machine.host().processes()) {
    if (process.program == "poold-worker")
      ++workers;
    else if (process.pid != machine.pid())
      wrong.push_back(name + " has a process " + process.program);
  }
  if (workers != 1 || health.workers_idle() != 1)
    wrong.push_back(name + " has " + std::to_string(workers) + " workers, " +
                    std::to_string(health.workers_idle()) + " of them idle");
  if (wrong.size() != before) return;
  const Usual now{descriptors_of(machine.pid()), machine.host().shared_memory().size()};
  const Usual& usual = usual_.try_emplace(name, now).first->second;
  if (now.descriptors > usual.descriptors + kMoreDescriptors)
    wrong.push_back(name + "'s poold has " + std::to_string(now.descriptors) + " descriptors, at first " +
                    std::to_string(usual.descriptors));
  if (now.files > usual.files)
    wrong.push_back(name + " has " + std::to_string(now.files) + " files in /dev/shm, at first " +
                    std::to_string(usual.files));
}

std::vector<std::string> Audit::check(pool::PoolAdmin::Stub& scheduler,
                                      const std::vector<const Host*>& clients) {
  std::vector<std::string> wrong;
  check_scheduler(scheduler, wrong);
  for (const GpuMachine* const machine : poolds_) check_poold(*machine, wrong);
  for (const Host* const client : clients) {
    for (const Running& process : client->processes())
      wrong.push_back(client->name() + " has a process " + process.program);
  }
  return wrong;
}

std::vector<std::string> Audit::await_idle(pool::PoolAdmin::Stub& scheduler,
                                           const std::vector<const Host*>& clients,
                                           std::chrono::milliseconds timeout) {
  std::vector<std::string> wrong;
  const auto end = std::chrono::steady_clock::now() + timeout;
  do {
    wrong = check(scheduler, clients);
    if (wrong.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (std::chrono::steady_clock::now() < end);
  return wrong;
}

}  // namespace gpupool::testing
