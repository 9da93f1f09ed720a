#include "server/poold/admin/service.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "common/blocked_signals.h"
#include "common/log/log.h"
#include "protocol/control/admin.grpc.pb.h"
#include "server/poold/workers/worker_pool.h"
#include "server/sockets/descriptor_closer.h"
#include "server/sockets/peer_process.h"

namespace gpupool::server {
namespace {

using grpc::Status;
using grpc::StatusCode;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{5'000};
constexpr uint32_t kShortestInterval = 100;
constexpr uint32_t kLongestInterval = 10'000;
constexpr int kMostWatchers = 16;    // each occupies a thread
constexpr int kMostMigrations = 16;  // likewise
constexpr int kMostThreads = 48;
constexpr milliseconds kLongestMigration{600'000};
constexpr milliseconds kLongestUpgrade{60'000};
constexpr size_t kLongestReason = 1024;
constexpr int kMostRequestBytes = 64 * 1024;
// For all calls. gRPC compares a message with its limit when it has received all of it.
constexpr size_t kMostMemoryOfCalls = size_t{64} << 20;
constexpr int kMostNewCallersAtOnce = 8;
constexpr milliseconds kPauseAfterFailedAccept{100};
constexpr milliseconds kLookForLeavers{250};

Status to_status(const Error& error) {
  switch (error.code) {
    case ErrorCode::unavailable: return {StatusCode::NOT_FOUND, error.message};
    case ErrorCode::invalid: return {StatusCode::INVALID_ARGUMENT, error.message};
    case ErrorCode::refused: return {StatusCode::ALREADY_EXISTS, error.message};
    case ErrorCode::closed: return {StatusCode::FAILED_PRECONDITION, error.message};
    default: return {StatusCode::INTERNAL, error.message};
  }
}

// Counts the callers of a method that occupies their threads for long.
class CallerSlot {
 public:
  explicit CallerSlot(std::atomic<int>& count) : count_(count), number_(count.fetch_add(1)) {}
  ~CallerSlot() { count_.fetch_sub(1); }
  CallerSlot(const CallerSlot&) = delete;
  CallerSlot& operator=(const CallerSlot&) = delete;
  Status check(int most, const char* method) const {
    if (number_ < most) return Status::OK;
    return {StatusCode::RESOURCE_EXHAUSTED,
            std::string("too many ") + method + " calls: at most " + std::to_string(most)};
  }

 private:
  std::atomic<int>& count_;
  const int number_;
};

void log_of_grpc(gpr_log_func_args* line) {
  const log::Level level = line->severity == GPR_LOG_SEVERITY_ERROR ? log::Level::warning : log::Level::debug;
  log::write(level, "grpc", {{"text", line->message}});
}

}  // namespace

class AdminService::Calls final : public admin::Admin::Service {
 public:
  Calls(MainThreadCaller& main_thread, AdminActions actions)
      : main_thread_(main_thread), actions_(std::move(actions)) {}

  Status Health(grpc::ServerContext*, const admin::HealthRequest*, admin::Poold* reply) override {
    return ask([this] { return actions_.health(); }, *reply);
  }

  Status ListGpus(grpc::ServerContext*, const admin::ListGpusRequest*, admin::ListGpusReply* reply) override {
    admin::Snapshot all;
    const Status status = snapshot(all);
    reply->mutable_gpus()->Swap(all.mutable_gpus());
    return status;
  }

  Status ListSessions(grpc::ServerContext*, const admin::ListSessionsRequest* request,
                      admin::ListSessionsReply* reply) override {
    admin::Snapshot all;
    const Status status = snapshot(all);
    for (admin::Session& session : *all.mutable_sessions()) {
      if (request->tenant().empty() || session.tenant() == request->tenant())
        reply->add_sessions()->Swap(&session);
    }
    return status;
  }

  Status ListTenants(grpc::ServerContext*, const admin::ListTenantsRequest*,
                     admin::ListTenantsReply* reply) override {
    admin::Snapshot all;
    const Status status = snapshot(all);
    reply->mutable_tenants()->Swap(all.mutable_tenants());
    return status;
  }

  Status GetQuota(grpc::ServerContext*, const admin::GetQuotaRequest* request, admin::Quota* reply) override {
    return ask_result([this, tenant = request->tenant()] { return actions_.quota(tenant); }, reply);
  }

  Status SetQuota(grpc::ServerContext*, const admin::SetQuotaRequest* request, admin::Quota* reply) override {
    const admin::Quota& changes = request->quota();
    if (!admin::Quota::Mode_IsValid(changes.mode()) || !admin::Quota::Priority_IsValid(changes.priority())) {
      return {StatusCode::INVALID_ARGUMENT, "unknown mode or priority"};
    }
    return ask_result([this, request = *request] { return actions_.set_quota(request); }, reply);
  }

  Status KillSession(grpc::ServerContext*, const admin::KillSessionRequest* request,
                     admin::KillSessionReply* reply) override {
    if (request->reason().size() > kLongestReason) {
      return {StatusCode::INVALID_ARGUMENT,
              "reason is too long: at most " + std::to_string(kLongestReason) + " bytes"};
    }
    reply->set_grace_ms(static_cast<uint32_t>(WorkerPool::kEndGrace.count()));
    return ask_result(
        [this, request = *request] { return actions_.end_session(request.session(), request.reason()); });
  }

  Status DumpSession(grpc::ServerContext*, const admin::DumpSessionRequest* request,
                     admin::SessionDump* reply) override {
    return ask_later(
        [this, session = request->session()](auto answered) { actions_.dump(session, std::move(answered)); },
        kPatience, *reply);
  }

  Status MigrateSession(grpc::ServerContext* context, const admin::MigrateSessionRequest* request,
                        admin::MigrateSessionReply* reply) override {
    return ask_client(context, "MigrateSession", actions_.migrate, *request, *reply);
  }

  Status SuspendSession(grpc::ServerContext* context, const admin::SuspendSessionRequest* request,
                        admin::SuspendSessionReply* reply) override {
    return ask_client(context, "SuspendSession", actions_.suspend, *request, *reply);
  }

  Status ResumeSession(grpc::ServerContext* context, const admin::ResumeSessionRequest* request,
                       admin::ResumeSessionReply* reply) override {
    return ask_client(context, "ResumeSession", actions_.resume, *request, *reply);
  }

  Status Upgrade(grpc::ServerContext*, const admin::UpgradeRequest*, admin::UpgradeReply* reply) override {
    return ask_later([this](auto answered) { actions_.upgrade(std::move(answered)); }, kLongestUpgrade,
                     *reply);
  }

  Status Watch(grpc::ServerContext* context, const admin::WatchRequest* request,
               grpc::ServerWriter<admin::Snapshot>* writer) override {
    if (request->interval_ms() < kShortestInterval || request->interval_ms() > kLongestInterval) {
      return {StatusCode::INVALID_ARGUMENT, "the interval must be from 100 to 10000 ms"};
    }
    const CallerSlot slot(watchers_);
    if (const Status status = slot.check(kMostWatchers, "Watch"); !status.ok()) return status;
    const milliseconds interval(request->interval_ms());
    auto next = std::chrono::steady_clock::now();
    while (true) {
      admin::Snapshot now;
      if (const Status status = snapshot(now); !status.ok()) return status;
      if (!writer->Write(now)) return Status::CANCELLED;
      next = std::max(next + interval, std::chrono::steady_clock::now());
      while (true) {
        const auto left = std::chrono::ceil<milliseconds>(next - std::chrono::steady_clock::now());
        if (left.count() <= 0) break;
        if (!main_thread_.sleep(std::min(left, kLookForLeavers))) return gone();
        if (context->IsCancelled()) return Status::CANCELLED;
      }
    }
  }

 private:
  static Status gone() { return {StatusCode::UNAVAILABLE, "poold is shutting down"}; }

  Status unanswered(milliseconds patience = kPatience) const {
    if (main_thread_.closed()) return gone();
    return {StatusCode::DEADLINE_EXCEEDED,
            "poold did not answer within " + std::to_string(patience.count() / 1000) + " s"};
  }

  template <class Question, class Reply>
  Status ask(Question question, Reply& reply) {
    auto answer = main_thread_.ask(std::move(question), kPatience);
    if (!answer) return unanswered();
    reply = std::move(*answer);
    return Status::OK;
  }

  // For questions that can fail.
  template <class Question, class Reply = std::nullptr_t>
  Status ask_result(Question question, Reply reply = nullptr) {
    auto answer = main_thread_.ask(std::move(question), kPatience);
    if (!answer) return unanswered();
    if (!*answer) return to_status(answer->error());
    if constexpr (!std::is_null_pointer_v<Reply>) *reply = std::move(**answer);
    return Status::OK;
  }

  // For questions that can fail and are answered later.
  template <class Question, class Reply>
  Status ask_later(Question question, milliseconds patience, Reply& reply) {
    auto answer = main_thread_.ask_for<Result<Reply>>(std::move(question), patience);
    if (!answer) return unanswered(patience);
    if (!*answer) return to_status(answer->error());
    reply = std::move(**answer);
    return Status::OK;
  }

  // For requests that a session's client has to fulfil.
  template <class Action, class Request, class Reply>
  Status ask_client(grpc::ServerContext* context, const char* method, const Action& action,
                    const Request& request, Reply& reply) {
    const CallerSlot slot(migrations_);
    if (const Status status = slot.check(kMostMigrations, method); !status.ok()) return status;
    const auto left = std::chrono::ceil<milliseconds>(context->deadline() - std::chrono::system_clock::now());
    auto answer = main_thread_.ask_for<Result<Reply>>(
        [&action, request](auto answered) { action(request, std::move(answered)); },
        std::clamp(left, milliseconds(0), kLongestMigration), [context] { return context->IsCancelled(); });
    if (!answer && main_thread_.closed()) return gone();
    if (!answer)
      return {StatusCode::DEADLINE_EXCEEDED, "the client has not answered yet; the request stands"};
    if (!*answer) return to_status(answer->error());
    reply = std::move(**answer);
    return Status::OK;
  }

  Status snapshot(admin::Snapshot& reply) {
    return ask([this] { return actions_.snapshot(); }, reply);
  }

  MainThreadCaller& main_thread_;
  const AdminActions actions_;
  std::atomic<int> watchers_{0}, migrations_{0};
};

class AdminService::Server {
 public:
  explicit Server(Calls& calls) {
    const BlockedSignals blocked;  // for gRPC's threads
    gpr_set_log_function(log_of_grpc);
    grpc::ServerBuilder builder;
    grpc::ResourceQuota limits("poold-admin");
    limits.SetMaxThreads(kMostThreads);
    limits.Resize(kMostMemoryOfCalls);
    builder.SetResourceQuota(limits);
    builder.SetMaxReceiveMessageSize(kMostRequestBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600'000);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    builder.RegisterService(&calls);
    server_ = builder.BuildAndStart();
  }
  // Open calls end with an error.
  ~Server() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }
  bool works() const { return server_ != nullptr; }
  void add(int connection) { grpc::AddInsecureChannelFromFd(server_.get(), connection); }

 private:
  std::unique_ptr<grpc::Server> server_;
};

AdminService::AdminService(asio::io_context& context, OwnedSocket socket, AdminActions actions)
    : socket_(std::move(socket)),
      may_connect_(actions.may_connect),
      main_thread_(context),
      calls_(std::make_unique<Calls>(main_thread_, std::move(actions))),
      server_(std::make_unique<Server>(*calls_)),
      readable_(context, socket_.descriptor()),
      pause_(context) {
  if (server_->works())
    await_connection();
  else
    log::error("admin_service_failed", {{"reason", "gRPC server failed to start"}});
}

AdminService::~AdminService() {
  if (server_) (void)release_socket();
}

OwnedSocket AdminService::release_socket() {
  main_thread_.close();
  readable_.cancel();
  readable_.release();
  server_.reset();
  return std::move(socket_);
}

void AdminService::await_connection() {
  readable_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& status) {
    if (!status) accept_some();
  });
}

void AdminService::accept_some() {
  for (int count = 0; count < kMostNewCallersAtOnce; ++count) {
    const int connection = ::accept4(socket_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) break;
      log::error("admin_accept_failed", {{"reason", std::generic_category().message(errno)}});
      pause_.expires_after(kPauseAfterFailedAccept);
      pause_.async_wait([this](const asio::error_code& status) {
        if (!status) await_connection();
      });
      return;
    }
    if (is_allowed(connection))
      server_->add(connection);
    else
      close_connection(connection);
  }
  await_connection();
}

// The socket's mode admits poold's user and root. A worker may run as poold's user, and executes a client's
// commands, so workers are refused. So are processes that have ended, which may have been workers: what they
// have written waits in the socket. A process of a PID namespace that poold does not see has the PID 0.
bool AdminService::is_allowed(int connection) const {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return false;
  // In this order: a worker is known as one until it has ended.
  const bool known = (who.uid == ::geteuid() || who.uid == 0) && may_connect_(who.pid);
  const auto process = PeerProcess::of(connection);
  const bool good = known && (who.pid == 0 || (process && !process->has_ended()));
  if (!good) log::warning("admin_denied", {{"pid", who.pid}, {"user", who.uid}});
  return good;
}

}  // namespace gpupool::server
