// Tests of pool-admin with a fake poold and a fake scheduler that send texts with control characters, and
// messages beyond gRPC's default size limit.
#include <grpcpp/grpcpp.h>

#include "protocol/control/admin.grpc.pb.h"
#include "protocol/control/pool_admin.grpc.pb.h"
#include "tests/support/catch.h"
#include "tests/support/hostile_text.h"
#include "tests/support/poold_process.h"

using namespace gpupool;
using namespace gpupool::testing;

namespace {

using grpc::ServerContext;
using grpc::Status;

constexpr size_t kUsualLimit = 4 << 20;                                  // gRPC's default limit for a message
const std::string kLongText = kHostileText + std::string(3 << 20, 'x');  // for a single field
const std::string kName = kHostileText + std::string(200, 'n');
const Status kRefusal(grpc::StatusCode::INVALID_ARGUMENT, kHostileText + std::string(3000, 'x'));

void fill(admin::Poold& poold) {
  poold.set_version(kName);
  poold.set_not_ready_because(kLongText);
  poold.mutable_pool()->set_node(kName);
  poold.mutable_pool()->set_away_because(kName);
  poold.mutable_pool()->set_fenced_because(kName);
}
void fill(admin::Session& session, int number) {
  session.set_number(static_cast<uint64_t>(number));
  session.set_tenant(kName);
  session.set_program(kName);
  session.set_host(kName);
  session.set_address(kName);
  session.set_transport(kHostileText);
}
void fill(admin::Gpu& gpu) {
  gpu.set_name(kLongText);
  gpu.set_uuid(kName);
  gpu.set_pci_bus_id(kName);
}

// Adds filled messages by `add` until they exceed kUsualLimit together.
template <class Add>
void add_beyond_limit(Add&& add) {
  for (size_t bytes = 0; bytes <= kUsualLimit;) bytes += add().ByteSizeLong();
}

class HostilePoold final : public admin::Admin::Service {
  Status Health(ServerContext*, const admin::HealthRequest*, admin::Poold* reply) override {
    return fill(*reply), Status::OK;
  }
  Status ListGpus(ServerContext*, const admin::ListGpusRequest*, admin::ListGpusReply* reply) override {
    return fill(*reply->add_gpus()), Status::OK;
  }
  Status ListSessions(ServerContext*, const admin::ListSessionsRequest*,
                      admin::ListSessionsReply* reply) override {
    add_beyond_limit([&]() -> admin::Session& {
      admin::Session& session = *reply->add_sessions();
      fill(session, reply->sessions_size());
      return session;
    });
    return Status::OK;
  }
  Status ListTenants(ServerContext*, const admin::ListTenantsRequest*,
                     admin::ListTenantsReply* reply) override {
    for (const bool configured : {true, false}) {
      admin::Tenant& tenant = *reply->add_tenants();
      tenant.set_name(kName + std::to_string(configured));
      tenant.set_configured(configured);
    }
    return Status::OK;
  }
  Status KillSession(ServerContext*, const admin::KillSessionRequest*, admin::KillSessionReply*) override {
    return kRefusal;
  }
  Status DumpSession(ServerContext*, const admin::DumpSessionRequest*, admin::SessionDump* reply) override {
    reply->set_tenant(kName);
    reply->set_program(kName);
    reply->set_host(kName);
    reply->set_no_answer_because(kLongText);
    return Status::OK;
  }
  Status MigrateSession(ServerContext*, const admin::MigrateSessionRequest*,
                        admin::MigrateSessionReply* reply) override {
    return reply->set_reason(kLongText), Status::OK;
  }
  Status Watch(ServerContext*, const admin::WatchRequest*,
               grpc::ServerWriter<admin::Snapshot>* stream) override {
    admin::Snapshot snapshot;
    fill(*snapshot.mutable_poold());
    fill(*snapshot.add_gpus());
    fill(*snapshot.add_sessions(), 1);
    for (int i = 0; i < 3; ++i) stream->Write(snapshot);
    return kRefusal;
  }
};

void fill(pool::LeaseState& lease) {
  lease.set_id(kName);
  lease.set_tenant(kName);
  lease.set_program(kName);
  lease.set_host(kName);
  lease.set_end_reason(kName);
  lease.add_labels(kName);
  lease.add_parts()->set_node(kName);
  for (int state = 0; state <= pool::LeaseMove::State_MAX; ++state) {
    pool::LeaseMove& move = *lease.add_moves();
    move.set_state(static_cast<pool::LeaseMove::State>(state));
    move.set_from(kName);
    move.set_to(kName);
    move.set_reason(kName);
  }
  lease.mutable_suspension()->set_state(pool::LeaseStandstill::SUSPENDING);
  lease.mutable_suspension()->set_because(kName);
  lease.mutable_suspension()->set_reason(kName);
}
void fill(pool::NodeState& node) {
  node.set_name(kName);
  node.set_because(kLongText);
  node.add_addresses(kName);
  node.set_rack(kName);
  node.set_zone(kName);
  node.set_version(kName);
}
void fill(pool::Waiting& waiting) {
  waiting.set_id(kName);
  waiting.set_tenant(kName);
  waiting.set_why(kLongText);
  waiting.mutable_request()->add_models(kName);
  waiting.mutable_request()->add_labels(kName);
  waiting.mutable_request()->set_program(kName);
  waiting.mutable_request()->set_host(kName);
}

class HostileScheduler final : public pool::PoolAdmin::Service {
  Status GetPool(ServerContext*, const pool::GetPoolRequest*, pool::PoolState* reply) override {
    reply->set_leader(true);
    reply->set_version(kName);
    reply->set_store(kLongText);
    return Status::OK;
  }
  Status ListNodes(ServerContext*, const pool::ListNodesRequest*, pool::ListNodesReply* reply) override {
    return fill(*reply->add_nodes()), Status::OK;
  }
  Status ListGpus(ServerContext*, const pool::ListGpusRequest*, pool::ListPoolGpusReply* reply) override {
    pool::PoolGpu& gpu = *reply->add_gpus();
    gpu.set_node(kName);
    gpu.set_uuid(kName);
    gpu.set_model(kLongText);
    return Status::OK;
  }
  Status ListLeases(ServerContext*, const pool::ListLeasesRequest*, pool::ListLeasesReply* reply) override {
    add_beyond_limit([&]() -> pool::LeaseState& {
      pool::LeaseState& lease = *reply->add_leases();
      fill(lease);
      return lease;
    });
    return Status::OK;
  }
  Status ListQueue(ServerContext*, const pool::ListQueueRequest*, pool::ListQueueReply* reply) override {
    return fill(*reply->add_waiting()), Status::OK;
  }
  Status ListTenants(ServerContext*, const pool::ListPoolTenantsRequest*,
                     pool::ListPoolTenantsReply* reply) override {
    pool::TenantState& tenant = *reply->add_tenants();
    tenant.set_name(kName);
    tenant.set_configured(true);
    return Status::OK;
  }
  Status GetUsage(ServerContext*, const pool::GetUsageRequest*, pool::GetUsageReply* reply) override {
    reply->set_currency(kName);
    reply->set_from_ms(INT64_MIN);
    reply->set_to_ms(INT64_MAX);
    reply->add_groups()->add_keys(kName);
    reply->add_groups();  // with too few keys
    return Status::OK;
  }
  Status GetPolicy(ServerContext*, const pool::GetPolicyRequest*, pool::Policy* reply) override {
    return reply->set_placement(kName), Status::OK;
  }
  Status Drain(ServerContext*, const pool::DrainRequest*, pool::NodeState*) override { return kRefusal; }
  Status Undrain(ServerContext*, const pool::UndrainRequest*, pool::NodeState* reply) override {
    return fill(*reply), Status::OK;
  }
  Status Evict(ServerContext*, const pool::EvictRequest*, pool::LeaseState* reply) override {
    return fill(*reply), Status::OK;
  }
  Status Move(ServerContext*, const pool::MoveRequest*, pool::LeaseState* reply) override {
    return fill(*reply), Status::OK;
  }
  Status Suspend(ServerContext*, const pool::SuspendRequest*, pool::LeaseState* reply) override {
    return fill(*reply), Status::OK;
  }
  Status Resume(ServerContext*, const pool::SuspendRequest*, pool::LeaseState* reply) override {
    return fill(*reply), Status::OK;
  }
  Status Why(ServerContext*, const pool::WhyRequest*, pool::WhyReply* reply) override {
    return reply->add_lines(kLongText), Status::OK;
  }
  Status Watch(ServerContext*, const pool::PoolWatchRequest*,
               grpc::ServerWriter<pool::PoolSnapshot>* stream) override {
    pool::PoolSnapshot snapshot;
    snapshot.mutable_pool()->set_version(kName);
    fill(*snapshot.add_nodes());
    fill(*snapshot.add_leases());
    fill(*snapshot.add_waiting());
    for (int i = 0; i < 3; ++i) stream->Write(snapshot);
    return kRefusal;
  }
};

std::unique_ptr<grpc::Server> serve(grpc::Service& service, const std::string& address, int* port = nullptr) {
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  REQUIRE(server);
  return server;
}

// Checks a command's output for 80 columns, for unlimited width, and as JSON.
void check_harmless(std::vector<std::string> words, const std::vector<std::string>& command) {
  words.insert(words.begin(), program_path("pool-admin"));
  words.insert(words.end(), command.begin(), command.end());
  for (const char* const columns : {"80", "0"}) {
    const Finished shown = run_to_end(words, {{"COLUMNS", columns}});
    INFO(command[0] << ", COLUMNS=" << columns << "\n" << shown.output.substr(0, 2000));
    CHECK((shown.status == 0 || shown.status == 1));  // 1: not ready or rejected; an unreadable reply gives 3
    CHECK(shown.output.find("?]0;own") != std::string::npos);
    CHECK(is_harmless(shown.output));
  }
  words.push_back("--json");
  const Finished json = run_to_end(words);
  INFO(command[0] << " --json\n" << json.output.substr(0, 2000));
  CHECK(is_harmless(json.output));
  CHECK(json.output.find("owned") != std::string::npos);
}

}  // namespace

TEST_CASE("control characters in texts from poold are never printed") {
  const TemporaryFolder folder;
  const std::string socket = folder.path() / "admin.sock";
  HostilePoold poold;
  const auto server = serve(poold, "unix:" + socket);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"health"},
                                             {"gpus"},
                                             {"sessions"},
                                             {"tenants"},
                                             {"quota", "show"},
                                             {"kill", "1"},
                                             {"dump", "1"},
                                             {"migrate", "1", "--to", "tcp://h:1"},
                                             {"top", "--count", "2", "--interval", "0.1"}}) {
    check_harmless({"--poold", "unix:" + socket}, command);
  }
  server->Shutdown(std::chrono::system_clock::now());
}

TEST_CASE("control characters in texts from the scheduler are never printed") {
  HostileScheduler scheduler;
  int port = 0;
  const auto server = serve(scheduler, "127.0.0.1:0", &port);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"health"},
                                             {"nodes"},
                                             {"gpus"},
                                             {"leases"},
                                             {"queue"},
                                             {"tenants"},
                                             {"quota", "show"},
                                             {"policy", "show"},
                                             {"usage"},
                                             {"usage", "--csv"},
                                             {"drain", "n"},
                                             {"undrain", "n"},
                                             {"evict", "1"},
                                             {"move", "1"},
                                             {"suspend", "1"},
                                             {"resume", "1"},
                                             {"why", "q1"},
                                             {"top", "--count", "2", "--interval", "0.1"}}) {
    check_harmless({"--scheduler", "127.0.0.1:" + std::to_string(port)}, command);
  }
  server->Shutdown(std::chrono::system_clock::now());
}
