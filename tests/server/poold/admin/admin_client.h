// Tests' client of poold's admin service. Fails the test if a call that must succeed does not.
#pragma once
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "protocol/control/admin.grpc.pb.h"
#include "tests/support/catch.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {

// Stops the process with SIGSTOP and returns once all of its threads have stopped.
inline void stop(pid_t process) {
  REQUIRE(::kill(process, SIGSTOP) == 0);
  const auto stopped = [](const std::filesystem::directory_entry& thread) {
    std::ifstream file(thread.path() / "stat");
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    const size_t end_of_name = stat.rfind(") ");
    return end_of_name != std::string::npos && stat.substr(end_of_name + 2, 1) == "T";
  };
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  REQUIRE(eventually([&] { return std::all_of(std::filesystem::directory_iterator(threads), {}, stopped); }));
}

class AdminClient {
 public:
  explicit AdminClient(const std::string& socket)
      : stub_(admin::Admin::NewStub(
            grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()))) {}
  explicit AdminClient(const PooldProcess& poold) : AdminClient(poold.admin_socket()) {}

  template <class Request, class Reply>
  grpc::Status call(grpc::Status (admin::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                    const Request& request, Reply& reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return (stub_.get()->*method)(&context, request, &reply);
  }
  // Calls the method, requires success, and returns the reply.
  template <class Request, class Reply>
  Reply get(grpc::Status (admin::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
            const Request& request) {
    Reply reply;
    const grpc::Status status = call(method, request, reply);
    INFO(status.error_message());
    REQUIRE(status.ok());
    return reply;
  }
  admin::Poold health() { return get(&admin::Admin::Stub::Health, admin::HealthRequest()); }
  auto sessions(const std::string& tenant = "") {
    admin::ListSessionsRequest request;
    request.set_tenant(tenant);
    return get(&admin::Admin::Stub::ListSessions, request).sessions();
  }
  auto tenants() { return get(&admin::Admin::Stub::ListTenants, admin::ListTenantsRequest()).tenants(); }
  grpc::StatusCode set_quota(const std::string& tenant, const admin::Quota& changes) {
    admin::SetQuotaRequest request;
    request.set_tenant(tenant);
    *request.mutable_quota() = changes;
    admin::Quota after;
    return call(&admin::Admin::Stub::SetQuota, request, after).error_code();
  }
  admin::Quota quota(const std::string& tenant) {
    admin::GetQuotaRequest request;
    request.set_tenant(tenant);
    return get(&admin::Admin::Stub::GetQuota, request);
  }
  grpc::StatusCode kill(uint64_t session, const std::string& reason) {
    admin::KillSessionRequest request;
    request.set_session(session);
    request.set_reason(reason);
    admin::KillSessionReply reply;
    return call(&admin::Admin::Stub::KillSession, request, reply).error_code();
  }
  grpc::StatusCode dump(uint64_t session, admin::SessionDump& dump) {
    admin::DumpSessionRequest request;
    request.set_session(session);
    return call(&admin::Admin::Stub::DumpSession, request, dump).error_code();
  }
  admin::SessionDump dump(uint64_t session) {
    admin::SessionDump dump;
    CHECK(this->dump(session, dump) == grpc::StatusCode::OK);
    return dump;
  }
  admin::Admin::Stub& stub() { return *stub_; }

 private:
  const std::unique_ptr<admin::Admin::Stub> stub_;
};

}  // namespace gpupool::testing
