// poold's worker processes: starts them ahead of clients, gives each worker one client, and supervises it
// until it exits. Owns the parts that serve workers' messages (shares.h, memory_mover.h, ...), and passes
// each message to its part. The daemon owns it; Checkpoints and the snapshots for administrators and monitors
// read it.
//
// Runs on poold's thread. A crashed worker is logged and replaced; other workers are not affected. Failed
// starts are retried with exponential backoff, and meanwhile clients are refused with the reason.
#pragma once
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/log/log.h"
#include "protocol/control/hello.pb.h"
#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"
#include "server/handover/handover.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/abandoned_sessions.h"
#include "server/poold/workers/client.h"
#include "server/poold/workers/client_queue.h"
#include "server/poold/workers/dumps.h"
#include "server/poold/workers/gpu_turns.h"
#include "server/poold/workers/image_cache.h"
#include "server/poold/workers/image_transfers.h"
#include "server/poold/workers/memory_mover.h"
#include "server/poold/workers/migrations.h"
#include "server/poold/workers/peer_copies.h"
#include "server/poold/workers/refusal.h"
#include "server/poold/workers/session_view.h"
#include "server/poold/workers/shares.h"
#include "server/poold/workers/state_changes.h"
#include "server/poold/workers/suspensions.h"
#include "server/poold/workers/tenant_code.h"
#include "server/poold/workers/tenant_partitions.h"
#include "server/poold/workers/workers.h"
#include "server/quota/accounts.h"
#include "server/sockets/networks.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

class WorkerPool {
 public:
  // How long a session has after end_session() before its worker is killed.
  static constexpr std::chrono::milliseconds kEndGrace{3'000};
  struct State {
    unsigned starting = 0, idle = 0, serving = 0, waiting = 0;
    uint64_t sessions_started = 0;
    uint64_t start_failures = 0;
    std::string not_ready_because;  // empty: a session can begin
  };
  struct Settings {
    WorkerProgram program;
    WorkerProcesses processes{};
    std::shared_ptr<Cgroups> cgroups;  // null: none
    unsigned idle_workers = 2;
    unsigned max_sessions = 64;
    uint64_t image_cache_bytes = 0;
    uint64_t code_cache_bytes = 0;             // limit for code compiled by softgpu or NVIDIA's driver
    bool driver_cache = false;                 // the device library may be NVIDIA's
    uint64_t host_memory_for_idle = 0;         // bytes; 0: device memory never moves to host memory
    uint64_t host_memory_for_checkpoints = 0;  // bytes; 0: no checkpoints
    std::chrono::milliseconds dead_peer_timeout{};
    std::chrono::milliseconds resume_timeout{0};  // for a client whose connection broke; 0: its session ends
    std::chrono::milliseconds start_timeout{60'000};  // from exec to `ready`
    // How long a client waits for a worker. Less than the client's own timeout, by default 20 s
    // (connect_timeout plus dead_peer_timeout).
    std::chrono::milliseconds client_patience{15'000};
    SuspendedFiles::Settings suspended;
    Networks peers;  // allowed destinations of copies to other servers
    quota::Arbiter::Settings turns{};
  };
  using SessionEnded = std::function<void(const SessionView&, const std::string& reason, bool crashed)>;
  // Receives a refused client, with its descriptor, and sends it the refusal.
  using Refuse = std::function<void(Client, Refusal)>;

  // `tenants` must outlive this object. Its quotas apply to the workers' accounts.
  WorkerPool(asio::io_context& context, Settings settings, Tenants& tenants, Refuse refuse);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // `why`: called before each session; returns why no session may begin now, if so.
  void refuse_when(std::function<std::optional<Refusal>()> why) { refuses_ = std::move(why); }
  // Starts the first workers. Calls back once: with success when one is ready, or with the reason why it
  // could not start.
  void start(std::function<void(Result<void>)> first_result);
  // Clients (worker_pool_clients.cc).
  //
  // Gives the client a worker at once or when one is ready, or refuses it. Takes ownership of its descriptor.
  void assign(Client client);
  // Passes a bulk or peer connection to its session's worker, or refuses it. Takes ownership of its
  // descriptor.
  void attach(Client client);
  // Passes the connection of a client that proves the key of its session to the session's worker, or refuses
  // it. Takes ownership of its descriptor.
  void resume(Client client);
  // Takes the client of a suspended session.
  void returns(Client client) { suspensions_.returns(std::move(client)); }
  // Finds the copy that another server's hello names; empty: no session here has it.
  std::optional<PeerCopy> find_peer_copy(const wire::PeerHello& hello) const { return peers_.find(hello); }

  // Administration (worker_pool_admin.cc).
  //
  // The GPUs and their driver as the first worker reported them; empty before it is ready.
  const std::vector<control::Device>& devices() const { return devices_; }
  int32_t driver_version() const { return driver_version_; }
  bool oversubscribes() const { return settings_.host_memory_for_idle != 0; }
  const ImageCache& images() const { return images_; }
  // Calls `visit` with the name and a reference of each counter that an upgrade hands over by name.
  template <class F>
  void for_each_counter(F&& visit) {
    images_.for_each_counter(visit);
    suspensions_.for_each_counter(visit);
  }
  const quota::Partitions& partitions() const { return partitions_.partitions(); }
  State state() const;
  unsigned max_sessions() const { return settings_.max_sessions; }
  void for_each_session(const std::function<void(const SessionView&)>& visit) const;
  // Sends `reason` to the session's client and ends the session. ErrorCode::unavailable: there is no such
  // session.
  Result<void> end_session(uint64_t session, const std::string& reason,
                           log::Level level = log::Level::warning);
  // Ends all sessions of a tenant whose lease has ended, and refuses its waiting clients. Logs no warning:
  // programs return their lease when they end.
  void end_sessions(const std::string& tenant, const std::string& reason);
  // Ends the sessions, and refuses the waiting clients, for which `reason` returns a text.
  using Reason = std::function<std::optional<std::string>(const Client&)>;
  void end_sessions(const Reason& reason, log::Level level);
  // Refuses the waiting clients of a tenant, or those for which `reason` returns a text.
  void refuse_waiting(const std::string& tenant, const std::string& why);
  void refuse_waiting(const Reason& reason);
  size_t sessions_of(const std::string& tenant) const;       // includes clients that wait for a worker
  size_t all_sessions_of(const std::string& tenant) const {  // and suspended ones
    return sessions_of(tenant) + suspensions_.count(tenant);
  }
  bool is_worker(pid_t pid) const { return workers_.all().contains(pid); }
  // Changes of sessions' states for programs of their tenant.
  StateChanges& state_changes() { return state_changes_; }
  // Questions what sessions are doing.
  Dumps& dumps() { return dumps_; }
  // Asks a session's client to migrate it (migrations.h). ErrorCode::closed also if the session is locked.
  Result<void> request_migration(uint64_t session, const std::string& address, Migrations::Answered answered);
  // Asks the clients of the tenant's sessions that have not been asked yet. `failed` is called for each
  // session that stays, with the reason, now or later.
  void request_migrations(const std::string& tenant, const std::string& address,
                          const std::function<void(const std::string&)>& failed);
  const Migrations::Counts& migration_counts() const { return migrations_.counts(); }
  // Has a session's client suspend it. ErrorCode::closed also if the session is locked.
  Result<void> request_suspension(uint64_t session, const Suspensions::Order& order,
                                  Suspensions::Answered answered);
  Suspensions& suspensions() { return suspensions_; }
  const Suspensions& suspensions() const { return suspensions_; }
  // Register a callback for the end of each session (with the reason, and whether the worker crashed) or for
  // its start. Callbacks are never removed.
  void on_session_end(SessionEnded ended) { session_ended_.push_back(std::move(ended)); }
  void on_session_start(std::function<void(const SessionView&)> started) {
    session_started_.push_back(std::move(started));
  }
  // Likewise for breaks of a session's connections, at a bounded rate for each session.
  void on_break(std::function<void(const SessionView&, const BreakEvent&)> told) {
    on_break_.push_back(std::move(told));
  }
  // Ends all workers, including those with a client, then calls back.
  void stop(std::function<void()> stopped);

  // For an upgrade (worker_pool_upgrade.cc, server/poold/upgrade/upgrade.h).
  //
  // Suspends and resumes no sessions until suspensions().unpause(). What has begun ends: see
  // Suspensions::unfinished().
  void pause_suspensions();
  // True if clients wait for a worker, workers for an answer that cannot be handed over, or suspended
  // sessions for a thread.
  bool has_waiting() const {
    return !waiting_.empty() || shares_.has_questions() || peers_.has_attempts() ||
           !suspensions_.unfinished().empty();
  }
  // Refuses the clients, and answers that nothing was found.
  void give_up_waiting();
  // Ends the workers without a session, and starts no others; unpause() does so again.
  void pause();
  void unpause();
  bool has_spare_workers() const { return workers_.all().size() > workers_.count(Stage::serving); }
  // Only when paused, without waiting ones and without spare workers.
  void save(upgrade::Pool& to) const;
  // Takes over the GPUs, then the sessions; call instead of start(). On failure the object is of no use.
  // `migrated`: called for requests to migrate that the previous program has made.
  using Migrated =
      std::function<void(const SessionView&, const std::string& address, const Result<Migrations::Outcome>&)>;
  void restore_devices(const upgrade::Pool& from) { set_devices(from.devices()); }
  Result<void> restore(const upgrade::Pool& from, const Migrated& migrated);

 private:
  using Clock = std::chrono::steady_clock;
  using Stage = Worker::Stage;

  // Starting workers.
  void start_missing_workers();
  bool has_own_users() const;  // each worker runs as a different user
  void start_one();
  void watch_start(const std::shared_ptr<Worker>& worker);
  void became_ready(Worker& worker);
  bool cannot_start() const;
  void start_failed(const std::string& why);
  void set_devices(const control::Devices& devices);

  // Messages of workers (worker_pool_messages.cc).
  void watch_control(const std::shared_ptr<Worker>& worker);
  bool read_control(Worker& worker);
  bool handle_message(Worker& worker, const ControlMessage& message);
  void take_last_messages(Worker& worker);

  // Clients (worker_pool_clients.cc).
  //
  // Returns why a client of the tenant gets no session at this place. The slots of abandoned sessions count
  // as free.
  std::optional<std::string> no_slot_for(const std::string& tenant, const ClientQueue::Place& place) const;
  ClientQueue::Place next_place(const std::string& tenant) const {
    return {waiting_.size() + 1, waiting_.count(tenant) + 1};
  }
  // True if the tenant may have one more session now.
  bool has_slot_for(const std::string& tenant) const;
  unsigned most_sessions_of(const std::string& tenant) const;  // 0: no limit
  // Gives waiting clients the idle workers, and lets abandoned sessions end for the others.
  void serve_waiting();
  void give_up_waiting(Client client);
  void free_slots_for_waiting();
  void refuse_unserved(std::vector<Client> clients, control::HelloReply::Status status,
                       const std::string& why);
  // Makes the client's session the worker's. Returns false if the worker cannot serve it; otherwise the
  // client is served or refused.
  bool hand_over(Worker& worker, Client& client);
  bool connection_broken(Worker& worker, const packet::ConnectionBroken& message);
  bool connection_resumed(Worker& worker, const packet::ConnectionResumed& message);
  void tell_break(Worker& worker, const BreakEvent& event);
  std::chrono::milliseconds resume_timeout_of(const Tenant* tenant) const;
  // For a client that returns after its session has ended.
  void remember_reason(const Worker& worker, const std::string& reason);
  void begin_session(Worker& worker, const Client& client, const packet::Session& session);
  Result<void> send_session(Worker& worker, const Client& client, const packet::Session& session,
                            std::string_view groups);
  // Answers a client that gets no worker now.
  void turn_away(Client client, Refusal refusal);
  Result<void> end_serving(uint64_t session, const std::string& reason, log::Level level);
  Result<void> check_unlocked(uint64_t session, const char* what) const;
  SessionView view_of(const Worker& worker) const;  // worker_pool_admin.cc

  // Upgrades (worker_pool_upgrade.cc).
  void save(const Worker& worker, upgrade::Session& to) const;
  Result<std::shared_ptr<Worker>> restore_worker(const upgrade::Session& from);
  void restore_parts(const std::shared_ptr<Worker>& worker, const upgrade::Session& from,
                     const Migrated& migrated);

  // Ends of workers.
  void watch_output(const std::shared_ptr<Worker>& worker);
  void kill_after(const std::shared_ptr<Worker>& worker, std::chrono::milliseconds grace);
  void watch_child_exits();
  void reap();
  void handle_exit(Worker& worker, int wait_status);
  void session_ended(Worker& worker, const std::string& how, bool crashed);
  std::string leave_cgroup(Worker& worker, int wait_status);
  void abandon_unkillable();

  asio::io_context& context_;
  const Settings settings_;
  const Refuse refuse_;
  std::function<std::optional<Refusal>()> refuses_ = [] { return std::nullopt; };
  Tenants& tenants_;
  std::vector<control::Device> devices_;
  int32_t driver_version_ = 0;

  // The workers, and the parts that serve them.
  ImageCache images_;
  TenantCode code_;
  quota::Accounts accounts_;
  WorkerUsers users_;
  GpuTurns turns_;
  Workers workers_;
  TenantPartitions partitions_;
  ImageTransfers image_transfers_;
  Shares shares_;
  PeerCopies peers_;
  MemoryMover memory_;
  StateChanges state_changes_;
  Dumps dumps_;
  Migrations migrations_;
  Suspensions suspensions_;
  AbandonedSessions abandoned_;
  ClientQueue waiting_;

  asio::signal_set child_signal_;
  asio::steady_timer backoff_timer_;
  asio::steady_timer stop_timer_;
  std::function<void(Result<void>)> first_result_;
  std::function<void()> stopped_;
  unsigned failures_in_a_row_ = 0;
  std::string last_failure_;
  bool backing_off_ = false;
  bool stopping_ = false;
  bool paused_ = false;  // for an upgrade
  struct EndedSession {
    std::string session_id, tenant, resume_key, reason;
  };
  std::deque<EndedSession> ended_sessions_;  // the last ones that were ended here
  std::vector<SessionEnded> session_ended_;
  std::vector<std::function<void(const SessionView&)>> session_started_;
  std::vector<std::function<void(const SessionView&, const BreakEvent&)>> on_break_;
  uint64_t start_failures_ = 0;
  uint64_t next_session_ = 1;
  uint64_t server_id_ = 0;  // random: names of shared objects are valid for this process only
};

}  // namespace gpupool::server
