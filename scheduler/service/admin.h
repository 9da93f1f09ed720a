// The gRPC service PoolAdmin of protocol/control/pool_admin.proto, used by pool-admin. gRPC's threads post
// each call to the engine's thread, which checks the operator's token and answers. UNAVAILABLE while this
// scheduler does not lead.
#pragma once
#include "protocol/control/pool_admin.grpc.pb.h"
#include "scheduler/service/streams.h"

namespace gpupool::scheduler {

// Returns the complete state of the pool. The engine's thread, only while it leads.
pool::PoolSnapshot take_snapshot(Engine& engine);

class AdminService final : public pool::PoolAdmin::CallbackService {
 public:
  explicit AdminService(Engine& engine) : engine_(engine) {}

 private:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* GetPool(Context* context, const pool::GetPoolRequest* request, pool::PoolState* reply) override;
  Unary* ListNodes(Context* context, const pool::ListNodesRequest* request,
                   pool::ListNodesReply* reply) override;
  Unary* ListGpus(Context* context, const pool::ListGpusRequest* request,
                  pool::ListPoolGpusReply* reply) override;
  Unary* ListLeases(Context* context, const pool::ListLeasesRequest* request,
                    pool::ListLeasesReply* reply) override;
  Unary* ListQueue(Context* context, const pool::ListQueueRequest* request,
                   pool::ListQueueReply* reply) override;
  Unary* ListTenants(Context* context, const pool::ListPoolTenantsRequest* request,
                     pool::ListPoolTenantsReply* reply) override;
  Unary* GetQuota(Context* context, const pool::GetTenantQuotaRequest* request,
                  pool::TenantQuota* reply) override;
  Unary* SetQuota(Context* context, const pool::SetTenantQuotaRequest* request,
                  pool::TenantQuota* reply) override;
  Unary* ClearQuota(Context* context, const pool::ClearTenantQuotaRequest* request,
                    pool::TenantQuota* reply) override;
  Unary* GetPolicy(Context* context, const pool::GetPolicyRequest* request, pool::Policy* reply) override;
  Unary* SetPolicy(Context* context, const pool::Policy* request, pool::Policy* reply) override;
  Unary* Drain(Context* context, const pool::DrainRequest* request, pool::NodeState* reply) override;
  Unary* Undrain(Context* context, const pool::UndrainRequest* request, pool::NodeState* reply) override;
  Unary* RemoveNode(Context* context, const pool::RemoveNodeRequest* request,
                    pool::RemoveNodeReply* reply) override;
  Unary* TrustGpu(Context* context, const pool::TrustGpuRequest* request, pool::NodeState* reply) override;
  Unary* Evict(Context* context, const pool::EvictRequest* request, pool::LeaseState* reply) override;
  Unary* Why(Context* context, const pool::WhyRequest* request, pool::WhyReply* reply) override;
  grpc::ServerWriteReactor<pool::PoolSnapshot>* Watch(Context* context,
                                                      const pool::PoolWatchRequest* request) override;

  Engine& engine_;
  int watchers_ = 0;  // number of Watch calls; the engine's thread
};

}  // namespace gpupool::scheduler
