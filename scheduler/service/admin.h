// The gRPC service PoolAdmin of protocol/control/pool_admin.proto, used by pool-admin: the methods, for calls
// as in admin_calls.h. UNAVAILABLE while this scheduler does not lead.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <type_traits>

#include "protocol/control/pool_admin.grpc.pb.h"
#include "scheduler/service/admin_calls.h"

namespace gpupool::scheduler {

// Returns the complete state of the pool. The engine's thread, only while it leads.
pool::PoolSnapshot take_snapshot(Engine& engine);

class UsageHistory;

class AdminService final : public grpc::CallbackGenericService {
 public:
  AdminService(Engine& engine, UsageHistory& usage);

 private:
  using Context = grpc::CallbackServerContext;

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
  template <class Request, class Reply>
  void add_view(const char* name, grpc::Status (AdminService::*method)(const Request&, Reply&));
  template <class Request, class Reply>
  void add_command(const char* name, const char* does, std::type_identity_t<std::string(const Request&)>* on,
                   grpc::Status (AdminService::*method)(const Request&, Reply&));

  // Called on the engine's thread, while it leads.
  grpc::Status GetPool(const pool::GetPoolRequest&, pool::PoolState& reply);
  grpc::Status ListNodes(const pool::ListNodesRequest&, pool::ListNodesReply& reply);
  grpc::Status ListGpus(const pool::ListGpusRequest& request, pool::ListPoolGpusReply& reply);
  grpc::Status ListLeases(const pool::ListLeasesRequest& request, pool::ListLeasesReply& reply);
  grpc::Status ListQueue(const pool::ListQueueRequest& request, pool::ListQueueReply& reply);
  grpc::Status ListTenants(const pool::ListPoolTenantsRequest&, pool::ListPoolTenantsReply& reply);
  grpc::Status GetQuota(const pool::GetTenantQuotaRequest& request, pool::TenantQuota& reply);
  grpc::Status SetQuota(const pool::SetTenantQuotaRequest& request, pool::TenantQuota& reply);
  grpc::Status ClearQuota(const pool::ClearTenantQuotaRequest& request, pool::TenantQuota& reply);
  grpc::Status GetPolicy(const pool::GetPolicyRequest&, pool::Policy& reply);
  grpc::Status SetPolicy(const pool::Policy& request, pool::Policy& reply);
  grpc::Status Drain(const pool::DrainRequest& request, pool::NodeState& reply);
  grpc::Status Undrain(const pool::UndrainRequest& request, pool::NodeState& reply);
  grpc::Status RemoveNode(const pool::RemoveNodeRequest& request, pool::RemoveNodeReply& reply);
  grpc::Status TrustGpu(const pool::TrustGpuRequest& request, pool::NodeState& reply);
  grpc::Status Evict(const pool::EvictRequest& request, pool::LeaseState& reply);
  grpc::Status Move(const pool::MoveRequest& request, pool::LeaseState& reply);
  grpc::Status Suspend(const pool::SuspendRequest& request, pool::LeaseState& reply);
  grpc::Status Resume(const pool::SuspendRequest& request, pool::LeaseState& reply);
  grpc::Status view(const Result<LeaseId>& lease, pool::LeaseState& reply);
  grpc::Status Why(const pool::WhyRequest& request, pool::WhyReply& reply);

  Engine& engine_;
  std::map<std::string, std::function<grpc::ServerGenericBidiReactor*(Context&)>> calls_;  // by full name
  int watchers_ = 0;  // number of Watch calls; the engine's thread
};

}  // namespace gpupool::scheduler
