// Tests of the gRPC service PoolAdmin with a real pool-scheduler and simulated poolds.
#include <fstream>

#include "protocol/control/pool_admin.grpc.pb.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/catch.h"
#include "tests/support/http_get.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;
using grpc::StatusCode;

namespace {

class Operator {
 public:
  explicit Operator(const std::string& address) : stub_(pool::PoolAdmin::NewStub(connect(address))) {}

  template <class Request, class Reply>
  grpc::Status call(grpc::Status (pool::PoolAdmin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                  Reply*),
                    const std::type_identity_t<Request>& request, Reply& reply) {
    grpc::ClientContext context;
    return (stub_.get()->*method)(&context, request, &reply);
  }
  pool::PoolSnapshot snapshot() {
    grpc::ClientContext context;
    pool::PoolWatchRequest request;
    request.set_interval_ms(100);
    const auto stream = stub_->Watch(&context, request);
    pool::PoolSnapshot seen;
    REQUIRE(stream->Read(&seen));
    REQUIRE(stream->Read(&seen));
    context.TryCancel();
    (void)stream->Finish();
    return seen;
  }

 private:
  std::unique_ptr<pool::PoolAdmin::Stub> stub_;
};

using Stub = pool::PoolAdmin::Stub;

}  // namespace

TEST_CASE("operators see the pool and change it") {
  SchedulerProcess scheduler;
  SimulatedPoolds poolds(scheduler.address(), 2, 2);
  REQUIRE(poolds.await());
  Operator admin(scheduler.address());
  const auto channel = connect(scheduler.address());
  pool::AcquireCall call = request_call(4, 1000);
  call.mutable_request()->set_program("train\x1b[2J.py");
  LeaseClient holder(channel, call);
  REQUIRE(holder.granted());
  LeaseClient waits(channel, request_call(1, 250));
  REQUIRE(waits.queued(1));

  SECTION("views") {
    const pool::PoolSnapshot seen = admin.snapshot();
    CHECK(seen.pool().leader());
    CHECK(seen.pool().nodes_open() == 2);
    CHECK(seen.pool().gpus() == 4);
    CHECK(seen.pool().compute_milli_leased() == 4000);
    CHECK(seen.pool().public_key().size() == 32);
    CHECK(seen.pool().counters().granted() == 1);
    CHECK(seen.nodes(1).name() == "n1");
    CHECK(seen.nodes(1).condition() == pool::NodeState::OPEN);
    CHECK(seen.nodes(1).gpus(1).compute_milli_leased() == 1000);
    CHECK(seen.nodes(1).gpus(1).leases() == 1);
    REQUIRE(seen.leases_size() == 1);
    CHECK(seen.leases(0).program() == "train?[2J.py");
    CHECK(seen.leases(0).held());
    CHECK(seen.leases(0).parts_size() == 2);
    REQUIRE(seen.waiting_size() == 1);
    CHECK(seen.waiting(0).head());
    CHECK(seen.tenants(0).dominant_share() == 1);
    pool::ListPoolGpusReply gpus;
    pool::ListGpusRequest of_one;
    of_one.set_node("n0");
    REQUIRE(admin.call(&Stub::ListGpus, of_one, gpus).ok());
    CHECK(gpus.gpus_size() == 2);
    pool::WhyRequest which;
    which.set_id(seen.waiting(0).id());
    pool::WhyReply why;
    REQUIRE(admin.call(&Stub::Why, which, why).ok());
    CHECK(why.lines(0) == "place 1 of 1");
    CHECK(why.lines(2) ==
          "waits for 25 % of 1 GPU: 0 of 4 suitable GPUs are free; it is first in the queue, and 1 is "
          "reserved for it on n0");
    which.set_id("nonsense");
    CHECK(admin.call(&Stub::Why, which, why).error_code() == StatusCode::NOT_FOUND);
  }
  SECTION("evict") {
    pool::EvictRequest evict;
    evict.set_lease(admin.snapshot().leases(0).id());
    evict.set_reason("somebody else's turn");
    evict.set_grace_ms(0);
    pool::LeaseState state;
    REQUIRE(admin.call(&Stub::Evict, evict, state).ok());
    CHECK(state.ending());
    CHECK(holder.ended()->why() == pool::Ended::EVICTED);
    CHECK(holder.ended()->reason() == "somebody else's turn");
    CHECK(waits.granted());
    evict.set_lease("ffffff");
    CHECK(admin.call(&Stub::Evict, evict, state).error_code() == StatusCode::NOT_FOUND);
    std::ifstream audit(scheduler.audit_file());
    const std::string lines{std::istreambuf_iterator<char>(audit), {}};
    CHECK(lines.find("\"event\":\"operator\",\"operator\":\"operator\",\"does\":\"evict\"") !=
          std::string::npos);
  }
  SECTION("drain and remove") {
    pool::DrainRequest drain;
    drain.set_node("n0");
    drain.set_reason("disks");
    drain.set_evict(true);
    drain.set_grace_ms(0);
    pool::NodeState node;
    REQUIRE(admin.call(&Stub::Drain, drain, node).ok());
    CHECK(node.condition() == pool::NodeState::DRAINED);
    CHECK(holder.ended()->why() == pool::Ended::EVICTED);
    const auto granted = waits.granted();
    REQUIRE(granted);
    CHECK(granted->servers(0).node() == "n1");
    pool::RemoveNodeRequest remove;
    pool::RemoveNodeReply removed;
    remove.set_node("n0");
    CHECK(admin.call(&Stub::RemoveNode, remove, removed).error_code() == StatusCode::FAILED_PRECONDITION);
    remove.set_node("n7");
    CHECK(admin.call(&Stub::RemoveNode, remove, removed).error_code() == StatusCode::NOT_FOUND);
    pool::UndrainRequest undrain;
    undrain.set_node("n0");
    REQUIRE(admin.call(&Stub::Undrain, undrain, node).ok());
    CHECK(node.condition() == pool::NodeState::OPEN);
  }
  SECTION("quotas and policy last") {
    pool::SetTenantQuotaRequest change;
    change.set_tenant("default");
    change.mutable_quota()->set_leases(7);
    pool::TenantQuota quota;
    REQUIRE(admin.call(&Stub::SetQuota, change, quota).ok());
    CHECK(quota.leases() == 7);
    CHECK(quota.weight() == 1);
    change.mutable_quota()->set_weight(0);
    CHECK(admin.call(&Stub::SetQuota, change, quota).error_code() == StatusCode::INVALID_ARGUMENT);
    pool::Policy policy, wanted;
    wanted.set_hold_ms(5'000);
    REQUIRE(admin.call(&Stub::SetPolicy, wanted, policy).ok());
    CHECK(policy.hold_ms() == 5'000);
    CHECK(policy.preemption());
    scheduler.kill();
    scheduler.start();
    Operator again(scheduler.address());
    pool::GetTenantQuotaRequest which;
    which.set_tenant("default");
    REQUIRE(again.call(&Stub::GetQuota, which, quota).ok());
    CHECK(quota.leases() == 7);
    REQUIRE(again.call(&Stub::GetPolicy, pool::GetPolicyRequest(), policy).ok());
    CHECK(policy.hold_ms() == 5'000);
    pool::ClearTenantQuotaRequest clear;
    clear.set_tenant("default");
    REQUIRE(again.call(&Stub::ClearQuota, clear, quota).ok());
    CHECK(quota.leases() == 0);
    which.set_tenant("nobody");
    CHECK(again.call(&Stub::GetQuota, which, quota).error_code() == StatusCode::NOT_FOUND);
  }
}

TEST_CASE("an operator decides a GPU dispute between two nodes") {
  SchedulerProcess scheduler({"--metrics", "127.0.0.1:0"});
  SimulatedPoold one(connect(scheduler.address()), {"n1", 7, 1, ""}),
      two(connect(scheduler.address()), {"n2", 7, 1, ""});
  Operator admin(scheduler.address());
  const auto withheld = [&] {
    one.send_heartbeat();
    two.send_heartbeat();
    return admin.snapshot().pool().gpus_withheld();
  };
  REQUIRE(eventually([&] { return withheld() == 2; }));
  CHECK(scheduler.await_log(" gpu_withheld "));
  CHECK(http_get(metrics_port(scheduler.log()), "/metrics").find("gpupool_pool_gpus_withheld 2\n") !=
        std::string::npos);
  pool::TrustGpuRequest request;
  request.set_node("n1");
  request.set_gpu("GPU-no");
  pool::NodeState node;
  CHECK(admin.call(&Stub::TrustGpu, request, node).error_code() == StatusCode::INVALID_ARGUMENT);
  request.set_gpu(some_uuid(7, 0));
  REQUIRE(admin.call(&Stub::TrustGpu, request, node).ok());
  CHECK(node.gpus(0).withheld_because().empty());
  CHECK(withheld() == 1);
  const auto granted = LeaseClient(connect(scheduler.address()), request_call(1, 1000)).granted();
  REQUIRE(granted);
  CHECK(granted->servers(0).node() == "n1");
  std::ifstream audit(scheduler.audit_file());
  CHECK(std::string(std::istreambuf_iterator<char>(audit), {}).find("\"does\":\"trust_gpu\"") !=
        std::string::npos);
}
