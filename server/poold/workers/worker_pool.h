// poold's worker processes: starts them ahead of clients, gives each worker one client, and supervises it
// until it exits. The daemon owns it; Checkpoints and the snapshots for administrators and monitors read it.
//
// Runs on poold's thread. A crashed worker is logged and replaced; other workers are not affected. Failed
// starts are retried with exponential backoff, and meanwhile clients are refused with the reason.
#pragma once
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/log/log.h"
#include "protocol/control/hello.pb.h"
#include "protocol/transport/tls/stream.h"
#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"
#include "server/handover/handover.h"
#include "server/poold/networks.h"
#include "server/poold/workers/answer_timer.h"
#include "server/poold/workers/gpu_turns.h"
#include "server/poold/workers/image_cache.h"
#include "server/poold/workers/peer_connections.h"
#include "server/poold/workers/refusal.h"
#include "server/poold/workers/tenant_code.h"
#include "server/poold/workers/worker_log.h"
#include "server/poold/workers/worker_process.h"
#include "server/quota/accounts.h"
#include "server/quota/memory_moves.h"
#include "server/quota/partitions.h"
#include "server/tenants/credential.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

// A copy to a session here that another server may send.
struct PeerCopy {
  uint64_t session = 0;
  uint64_t copy = 0;  // sequence number of the copy's command
  wire::CopyKey key{};
};

// A client whose Hello is complete.
struct Client {
  int descriptor = -1;
  std::string transport;
  std::string hello;
  std::string session_id;
  std::string bulk_token;  // not empty: a bulk connection of session_id
  // Set for another server's connection, which has proved that it holds the copy's key.
  std::optional<PeerCopy> peer;
  bool monitor = false;                         // queries GPU state only; needs no session
  bool checkpoint = false;                      // checkpoints other processes; needs no session
  std::shared_ptr<transport::tls::Stream> tls;  // poold's part of a tls connection; null for other transports
  std::string tenant = kDefaultTenant;
  std::string lease;  // hexadecimal; empty: none
  // Authenticated the client; none for bulk and peer connections, which belong to a session.
  Credential credential;
  std::string admission_peer;  // peer that its refusals are charged to (common/admission/peer.h)
  // For logs; all but `address` as the client reported it:
  std::string address;
  std::string host;
  std::string program;
  int64_t pid = 0;
  std::string pid_space;  // PID namespace of `pid`
};

// A running session as administration sees it. Valid only during the callback that receives it.
struct SessionView {
  uint64_t number;
  pid_t worker;
  std::chrono::system_clock::time_point started;
  std::chrono::nanoseconds age;
  const Client& client;
  const quota::SessionPage& page;  // untrusted: the worker may write anything
  bool ending;                     // end_session() was called
  wire::ProcessState state;
  const std::string& locked_by;  // program that locked it or is locking it, as its client reported
  const char* state_change;      // name of the pending state change ("lock", ...); empty: none
};

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
    std::chrono::milliseconds start_timeout{60'000};  // from exec to `ready`
    // How long a client waits for a worker. Less than the client's own timeout, by default 20 s
    // (connect_timeout plus dead_peer_timeout).
    std::chrono::milliseconds client_patience{15'000};
    Networks peers;  // allowed destinations of copies to other servers
    quota::Arbiter::Settings turns{};
    // Called before each session. Returns why no session may begin now, if so.
    std::function<std::optional<Refusal>()> refuses;
  };
  using SessionEnded = std::function<void(const SessionView&, const std::string& reason, bool crashed)>;
  // Receives a refused client, with its descriptor, and sends it the refusal.
  using Refuse = std::function<void(Client, Refusal)>;

  // `tenants` must outlive this object. Its quotas apply to the workers' accounts.
  WorkerPool(asio::io_context& context, Settings settings, Tenants& tenants, Refuse refuse);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Starts the first workers. Calls back once: with success when one is ready, or with the reason why it
  // could not start.
  void start(std::function<void(Result<void>)> first_result);
  // Clients, in worker_pool_clients.cc.
  //
  // Gives the client a worker at once or when one is ready, or refuses it. Takes ownership of its descriptor.
  void assign(Client client);
  // Passes a bulk or peer connection to its session's worker, or refuses it. Takes ownership of its
  // descriptor.
  void attach(Client client);
  // Finds the copy that another server's hello names; empty: no session here has it. In worker_pool_peers.cc.
  std::optional<PeerCopy> find_peer_copy(const wire::PeerHello& hello) const;
  // Administration, in worker_pool_admin.cc.
  //
  // The GPUs and their driver as the first worker reported them; empty before it is ready.
  const std::vector<control::Device>& devices() const { return devices_; }
  int32_t driver_version() const { return driver_version_; }
  bool oversubscribes() const { return settings_.host_memory_for_idle != 0; }
  const ImageCache& images() const { return images_; }
  const quota::Partitions& partitions() const { return partitions_; }
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
  size_t sessions_of(const std::string& tenant) const;  // includes clients that wait for a worker
  bool is_worker(pid_t pid) const { return workers_.contains(pid); }
  // Checkpoints, in worker_pool_checkpoints.cc.
  //
  // Sessions of the process `pid` in the client's own host and PID namespace, tenant and lease.
  std::vector<wire::ProcessSession> sessions_of_process(const Client& client, int64_t pid) const;
  // Locks, checkpoints, restores or unlocks one of these sessions. Calls `answered` once with a CUresult,
  // possibly before returning. Returns a number for cancel_state_change(); 0: already answered.
  uint64_t change_state(const Client& client, const wire::CheckpointQuestion& question,
                        std::function<void(int32_t)> answered);
  // Cancels a pending lock; other actions go on. With `abandoned`, `answered` is not called, and a session
  // that gets locked all the same is unlocked again.
  void cancel_state_change(uint64_t question, bool abandoned);
  // Asks a session's worker what the session is doing. Calls `answered` once within 2 s, possibly before
  // returning, with a serialized admin::WorkerDump or an error. ErrorCode::unavailable: there is no such
  // session, and `answered` is not called. In worker_pool_dumps.cc.
  using Dumped = std::function<void(const SessionView&, const Result<std::string>&)>;
  Result<void> dump(uint64_t session, Dumped answered);
  // Register a callback for the end of each session (with the reason, and whether the worker crashed) or for
  // its start. Callbacks are never removed.
  void on_session_end(SessionEnded ended) { session_ended_.push_back(std::move(ended)); }
  void on_session_start(std::function<void(const SessionView&)> started) {
    session_started_.push_back(std::move(started));
  }
  // Ends all workers, including those with a client, then calls back.
  void stop(std::function<void()> stopped);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { starting, idle, serving };
  struct Worker {
    Worker(asio::io_context& context, StartedWorker started)
        : pid(started.pid),
          control(context, started.control),
          output(std::make_shared<WorkerLog>(context, started.output, started.pid)),
          page(std::move(started.page)),
          deadline(context),
          since(Clock::now()),
          dump(context) {}
    ~Worker();
    void close_control();  // the worker then sees the end of the socket and exits
    pid_t pid;
    std::string cgroup;                               // empty: none
    std::unique_ptr<WorkerUsers::ReservedUser> user;  // returned when the process has been waited for
    asio::posix::stream_descriptor control;
    const std::shared_ptr<WorkerLog> output;
    std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
    std::unique_ptr<quota::Accounts::Place> account_slot;  // quota account; while serving
    asio::steady_timer deadline;
    Stage state = Stage::starting;
    bool ended = false;
    Clock::time_point since;  // when `state` began
    uint64_t session = 0;
    std::string session_id;                         // while serving
    std::string bulk_token;                         // while serving
    Client client;                                  // while serving; without descriptor and Hello
    std::chrono::system_clock::time_point started;  // of the session
    std::string ending;                             // reason given to end_session(); empty: not called
    std::string failure;
    wire::ImageDigest image{};  // last one that poold gave it
    // File that the worker fills with an image it has offered. poold made it, so its close does not block.
    struct ImageSpace {
      wire::ImageDigest name{};
      uint64_t bytes = 0;
      int file = -1;
    };
    ImageSpace image_space;
    // Memory moves, in worker_pool_memory.cc.
    struct Moves {
      // Requests for room: first, latest, and the last warning.
      Clock::time_point wants_since{}, wanted{}, warned{};
      struct Order {
        int gpu;
        uint64_t keep, most;
      };
      std::optional<Order> order;          // not answered yet
      Clock::time_point declined_until{};  // the session is busy without commands: do not ask before
      uint64_t allowed = 0;                // limit for its bytes in host memory
    };
    Moves moves;
    // Open question about another session's memory or event, in worker_pool_shares.cc: the other session, and
    // the number of the question.
    struct PendingShare {
      uint64_t session = 0, request = 0;
      int end = -1;  // the asking worker's end of the pair that carries the descriptor
    };
    PendingShare pending_share;
    // Checkpoint state, in worker_pool_checkpoints.cc.
    struct Checkpoint {
      wire::ProcessState state = wire::ProcessState::running;
      uint64_t question = 0;  // number of the open question, 0: none; `action` and `answered` belong to it
      wire::CheckpointAction action{};
      std::function<void(int32_t)> answered;  // null: no client waits
      uint64_t host_bytes = 0;                // limit of host memory for its device memory
      std::string by;                         // program that has locked it or is locking it
    };
    Checkpoint checkpoint;
    struct Dump {
      explicit Dump(asio::io_context& context) : deadline(context) {}
      uint64_t question = 0;  // number of the open question; 0: none
      std::vector<Dumped> waiting;
      AnswerTimer deadline;
    };
    Dump dump;
  };
  struct Waiting {
    Client client;
    std::unique_ptr<asio::steady_timer> patience;
    uint64_t ticket = 0;
  };

  void start_missing_workers();
  bool has_own_users() const;  // each worker runs as a different user
  void start_one();
  void watch_start(const std::shared_ptr<Worker>& worker);
  void watch_control(const std::shared_ptr<Worker>& worker);
  bool read_control(Worker& worker);
  bool handle_message(Worker& worker, const ControlMessage& message);
  bool send_image(Worker& worker, const packet::ImageQuestion& wanted);
  bool make_image_space(Worker& worker, const packet::ImageQuestion& offered);
  bool accept_image(Worker& worker, const packet::Image& deposit);
  void accept_last_images(Worker& worker);
  // In worker_pool_memory.cc:
  bool moves_memory_of(int32_t gpu) const;
  bool make_room(Worker& asking, const packet::MemoryNeeded& wanted);
  bool moved_out(Worker& worker, const packet::MovedOut& done);
  std::vector<quota::MemoryUse> memory_uses(int gpu, Clock::time_point now) const;
  static uint64_t in_host(const Worker& worker);
  static bool waits_for_memory(const Worker& worker, Clock::time_point now);
  uint64_t host_room() const;
  // In worker_pool_peers.cc:
  bool open_peer(Worker& asking, const packet::PeerWanted& wanted);
  void answer_peer(uint64_t session, uint64_t request, int descriptor);
  // In worker_pool_shares.cc:
  Worker* find_session_worker(uint64_t session);
  bool share_missing(Worker& asking, uint64_t request);
  bool ask_for_share(Worker& asking, const packet::ShareWanted& wanted);
  Worker* find_asking(const Worker& owner, uint64_t requester, uint64_t request);
  bool forward_share(Worker& owner, const packet::ShareFound& found);
  bool forward_share_missing(Worker& owner, const packet::ShareMissing& missing);
  static void forget_share(Worker& asking);
  void fail_shares_of(const Worker& gone);
  static uint64_t host_memory_left();  // in worker_pool_memory.cc
  // In worker_pool_checkpoints.cc:
  static bool is_of_process(const Worker& worker, const Client& client, int64_t pid);
  bool send_state_change(Worker& worker, wire::CheckpointAction action, uint64_t host_bytes);
  bool state_changed(Worker& worker, const packet::StateChanged& answer);
  uint64_t checkpoint_room() const;
  static const char* name_of(wire::CheckpointAction action);
  // In worker_pool_dumps.cc:
  void ask_for_dump(const std::shared_ptr<Worker>& worker, Dumped answered);
  bool take_dump(Worker& worker, const ControlMessage& message);
  void end_dump(Worker& worker);  // for a worker that has ended
  void answer_dump(Worker& worker, const Result<std::string>& payload);
  // In worker_pool.cc; hand_over() and give_up_waiting() in worker_pool_clients.cc, view_of() in
  // worker_pool_admin.cc, set_devices(), update_partitions() and warn_of_unplaced_partitions() in
  // worker_pool_partitions.cc:
  bool end_worker(Worker& worker, const std::string& why);
  void became_ready(Worker& worker);
  bool cannot_start() const;
  void start_failed(const std::string& why);
  bool hand_over(Worker& worker, Client& client);
  void set_devices(const control::Devices& devices);
  void update_partitions();
  void warn_of_unplaced_partitions() const;
  void watch_child_exits();
  void reap();
  void handle_exit(Worker& worker, int wait_status);
  std::string leave_cgroup(Worker& worker, int wait_status);
  void abandon_unkillable();
  void give_up_waiting(uint64_t ticket);
  unsigned count(Stage stage) const;
  static SessionView view_of(const Worker& worker);

  asio::io_context& context_;
  const Settings settings_;
  const Refuse refuse_;
  Tenants& tenants_;
  ImageCache images_;
  TenantCode code_;
  quota::Accounts accounts_;
  quota::Partitions partitions_;
  std::map<std::string, quota::Partitions::Shares> partitioned_;  // last passed to partitions_
  WorkerUsers users_;
  GpuTurns turns_;
  PeerConnections peers_;
  asio::signal_set child_signal_;
  asio::steady_timer backoff_timer_;
  asio::steady_timer stop_timer_;
  std::map<pid_t, std::shared_ptr<Worker>> workers_;
  std::deque<Waiting> waiting_;
  std::function<void(Result<void>)> first_result_;
  std::function<void()> stopped_;
  unsigned failures_in_a_row_ = 0;
  std::string last_failure_;
  bool backing_off_ = false;
  bool stopping_ = false;
  std::vector<control::Device> devices_;
  int32_t driver_version_ = 0;
  std::vector<SessionEnded> session_ended_;
  std::vector<std::function<void(const SessionView&)>> session_started_;
  uint64_t start_failures_ = 0;
  uint64_t next_session_ = 1;
  uint64_t server_id_ = 0;  // random: names of shared objects are valid for this process only
  uint64_t next_ticket_ = 1;
  uint64_t next_question_ = 1;
};

}  // namespace gpupool::server
