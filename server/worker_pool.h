// poold's workers: started ahead of clients, given one client each, supervised to their end.
//
// Runs on poold's one thread (the io_context's). A worker that crashes is logged and replaced and touches no
// other one. Workers that cannot start are retried ever more slowly; meanwhile clients are refused with the
// reason.
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

#include "protocol/control/hello.pb.h"
#include "protocol/transport/tls/stream.h"
#include "server/answer_timer.h"
#include "server/confinement/cgroups.h"
#include "server/confinement/worker_users.h"
#include "server/gpu_turns.h"
#include "server/handover.h"
#include "server/image_cache.h"
#include "server/log/log.h"
#include "server/networks.h"
#include "server/peer_connections.h"
#include "server/quota/accounts.h"
#include "server/quota/memory_moves.h"
#include "server/quota/partitions.h"
#include "server/refusal.h"
#include "server/tenant_code.h"
#include "server/tenants/credential.h"
#include "server/tenants/tenants.h"
#include "server/worker_log.h"
#include "server/worker_process.h"

namespace gpupool::server {

// A copy to the device that another server may send, of a session here.
struct PeerCopy {
  uint64_t session = 0;
  uint64_t copy = 0;  // sequence number of its command
  wire::CopyKey key{};
};

// A client whose Hello is complete.
struct Client {
  int descriptor = -1;
  std::string transport;
  std::string hello;
  std::string session_id;
  std::string bulk_token;  // not empty: a bulk connection of that session
  std::optional<PeerCopy> peer;  // another server's, which has shown the copy's key
  bool monitor = false;    // wants no session: it watches
  bool checkpoint = false;  // nor this one: it changes others' state
  std::shared_ptr<transport::tls::Stream> tls;  // poold's part of a tls connection; null of others
  std::string tenant = kDefaultTenant;
  std::string lease;  // hexadecimal; empty: it has shown none
  Credential credential;  // that admitted it; of a bulk or peer's connection: none, since it belongs to a session
  std::string charged_to;  // the peer that its refusals are charged to (admission/peer.h)
  // For logs, as the client says it:
  std::string address;
  std::string host;
  std::string program;
  int64_t pid = 0;
  std::string pid_space;  // that `pid` belongs to
};

// A session at work, for those who administer poold. Valid during the call that hands it out.
struct SessionView {
  uint64_t number;
  pid_t worker;
  std::chrono::system_clock::time_point started;
  std::chrono::nanoseconds age;
  const Client& client;
  const quota::SessionPage& page;  // the worker may write anything into it
  bool ending;                     // end_session() was called
  wire::ProcessState state;
  const std::string& locked_by;  // the program that has locked it, or wants to; as the client says it
  const char* state_change;      // "lock", ... that is asked for and not done; empty: none
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
    uint64_t code_cache_bytes = 0;  // for machine code that softgpu or NVIDIA's driver has compiled
    bool driver_cache = false;      // the device library may be NVIDIA's
    uint64_t host_memory_for_idle = 0;  // bytes; 0: device memory stays where it is
    uint64_t host_memory_for_checkpoints = 0;  // bytes; 0: there are none
    std::chrono::milliseconds dead_peer_timeout{};
    std::chrono::milliseconds start_timeout{60'000};  // from exec to ready
    // How long a client waits for a worker; it loses patience itself after 20 s.
    std::chrono::milliseconds client_patience{15'000};
    Networks peers;  // where copies to other servers may go
    quota::Arbiter::Settings turns{};
    // Asked before each session: why none may begin now.
    std::function<std::optional<Refusal>()> refuses;
  };
  // Takes the client back, with its descriptor, to be told why.
  using SessionEnded = std::function<void(const SessionView&, const std::string& reason, bool crashed)>;
  using Refuse = std::function<void(Client, Refusal)>;

  // `tenants` outlives it; their limits are those of the workers' accounts.
  WorkerPool(asio::io_context& context, Settings settings, Tenants& tenants, Refuse refuse);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Calls back once: with success when the first worker is ready, or with why it could not start.
  void start(std::function<void(Result<void>)> first_result);
  // This and the next are in worker_pool_clients.cc. The client gets a worker at once or soon, or is refused. Takes over its
  // descriptor.
  void assign(Client client);
  // A bulk connection goes to its session's worker, or is refused. Takes over its descriptor.
  void attach(Client client);
  // In worker_pool_peers.cc: the copy that another server's hello names. Nothing: no session here has it.
  std::optional<PeerCopy> find_peer_copy(const wire::PeerHello& hello) const;
  // This and the next six are in worker_pool_admin.cc. What a worker said of them; none before the first was ready.
  const std::vector<control::Device>& devices() const { return devices_; }
  int32_t driver_version() const { return driver_version_; }
  bool oversubscribes() const { return settings_.host_memory_for_idle != 0; }
  const ImageCache& images() const { return images_; }
  const quota::Partitions& partitions() const { return partitions_; }
  State state() const;
  unsigned max_sessions() const { return settings_.max_sessions; }
  void for_each_session(const std::function<void(const SessionView&)>& visit) const;
  // Its client hears the reason, which says by whom. ErrorCode::unavailable: there is no such session.
  Result<void> end_session(uint64_t session, const std::string& reason, log::Level level = log::Level::warning);
  // All of a tenant whose lease has ended, those that wait for a worker too. No warning: programs that end give their lease back.
  void end_sessions(const std::string& tenant, const std::string& reason);
  // Those, and clients that wait for a worker, for which there is a reason.
  using Reason = std::function<std::optional<std::string>(const Client&)>;
  void end_sessions(const Reason& reason, log::Level level);
  size_t sessions_of(const std::string& tenant) const;  // those that wait included
  bool is_worker(pid_t pid) const { return workers_.contains(pid); }
  // This and the next two are in worker_pool_checkpoints.cc. The sessions of a process of the client's tenant and lease on the client's own
  // system.
  std::vector<wire::ProcessSession> sessions_of_process(const Client& client, int64_t pid) const;
  // One of them is locked, checkpointed, restored or unlocked; `answered` is called once, perhaps at once. What to give up by; 0: nothing.
  uint64_t change_state(const Client& client, const wire::CheckpointQuestion& wish, std::function<void(int32_t)> answered);
  // Of locking, which is answered soon; `nobody_waits`: it is not, and a session that has just been locked is unlocked.
  void give_up(uint64_t question, bool nobody_waits);
  // In worker_pool_dumps.cc: what a session's worker says that the session is doing (an admin::WorkerDump), or why it says nothing. `answered` is
  // called once, within 2 s, perhaps at once. ErrorCode::unavailable: there is no such session, and `answered` is not called.
  using Dumped = std::function<void(const SessionView&, const Result<std::string>&)>;
  Result<void> dump(uint64_t session, Dumped answered);
  // Called when a session's worker has ended (why, and whether by a crash), and when one has begun, for this object's whole life.
  void on_session_end(SessionEnded ended) { session_ended_.push_back(std::move(ended)); }
  void on_session_start(std::function<void(const SessionView&)> started) { session_started_.push_back(std::move(started)); }
  // Ends all workers, those with a client too, and then calls back.
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
    void close_control();  // it sees the end of it and leaves
    pid_t pid;
    std::string cgroup;  // empty: none
    std::unique_ptr<WorkerUsers::Taken> user;  // given back when the process has been waited for
    asio::posix::stream_descriptor control;
    const std::shared_ptr<WorkerLog> output;
    std::shared_ptr<quota::SharedPage<quota::SessionPage>> page;
    std::unique_ptr<quota::Accounts::Place> place;  // while serving
    asio::steady_timer deadline;
    Stage state = Stage::starting;
    bool ended = false;
    Clock::time_point since;  // of the state
    uint64_t session = 0;
    std::string session_id;  // this and the next: while serving
    std::string bulk_token;
    Client client;  // without descriptor and Hello; while serving
    std::chrono::system_clock::time_point started;  // this and the next: of the session
    std::string ending;      // why end_session() ends it
    std::string failure;
    wire::ImageDigest image{};  // that it got last
    // The file that it fills with an image it has offered; poold's, so that closing it waits for nobody.
    struct ImageSpace {
      wire::ImageDigest name{};
      uint64_t bytes = 0;
      int file = -1;
    };
    ImageSpace image_space;
    // Of memory that is moved, in worker_pool_memory.cc.
    struct Moves {
      Clock::time_point wants_since{}, wanted{}, warned{};  // room: from when, when it last said so
      struct Order {
        int gpu;
        uint64_t keep, most;
      };
      std::optional<Order> order;          // that is not answered yet
      Clock::time_point declined_until{};  // it has work although it gets no commands
      uint64_t allowed = 0;                // bytes that may be in host memory
    };
    Moves moves;
    // What it wants of another session: whose it is, and its number for the question. In worker_pool_shares.cc.
    struct ShareAsked {
      uint64_t session = 0, request = 0;
      int end = -1;  // the asker's, of the pair on which the descriptor comes
    };
    ShareAsked share_asked;
    // In worker_pool_checkpoints.cc.
    struct Checkpoint {
      wire::ProcessState state = wire::ProcessState::running;
      uint64_t question = 0;  // that is not answered yet; this and the next two are its
      wire::CheckpointAction action{};
      std::function<void(int32_t)> answered;  // null: nobody waits
      uint64_t host_bytes = 0;                 // that its memory may take
      std::string by;                          // who has locked it, or wants to
    };
    Checkpoint checkpoint;
    struct Dump {
      explicit Dump(asio::io_context& context) : deadline(context) {}
      uint64_t question = 0;  // that the worker has not answered
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

  void keep_enough();
  bool has_own_users() const;  // each worker is another user
  void start_one();
  void watch_start(const std::shared_ptr<Worker>& worker);
  void watch_control(const std::shared_ptr<Worker>& worker);
  bool read_control(Worker& worker);
  bool serve(Worker& worker, const ControlMessage& message);
  bool give_image(Worker& worker, const ControlHeader& wanted);
  bool make_image_space(Worker& worker, const ControlHeader& offered);
  bool take_image(Worker& worker, const ControlHeader& deposit);
  void take_last_images(Worker& worker);
  // This and the next five are in worker_pool_memory.cc.
  bool make_room(Worker& asking, const ControlHeader& wanted);
  bool moved_out(Worker& worker, const ControlHeader& done);
  std::vector<quota::MemoryUse> memory_on(int gpu, Clock::time_point now) const;
  static uint64_t in_host(const Worker& worker);
  static bool still_wants(const Worker& worker, Clock::time_point now);
  uint64_t host_room() const;
  // This and the next are in worker_pool_peers.cc.
  bool open_peer(Worker& asking, const ControlHeader& wanted);
  void answer_peer(uint64_t session, uint64_t request, int descriptor);
  // This and the next five are in worker_pool_shares.cc.
  Worker* serving(uint64_t session);
  bool share_missing(Worker& asking, uint64_t request);
  bool ask_for_share(Worker& asking, const ControlHeader& wanted);
  bool give_share(Worker& owner, const ControlHeader& header);
  static void forget_share(Worker& asking);
  void answer_for(const Worker& gone);
  static uint64_t host_memory_left();
  // This and the next three are in worker_pool_checkpoints.cc.
  static bool is_of_process(const Worker& worker, const Client& client, int64_t pid);
  bool order(Worker& worker, wire::CheckpointAction action, uint64_t host_bytes);
  bool state_changed(Worker& worker, const ControlHeader& answer);
  uint64_t checkpoint_room() const;
  static const char* name_of(wire::CheckpointAction action);
  // This and the next three are in worker_pool_dumps.cc.
  void ask_for_dump(const std::shared_ptr<Worker>& worker, Dumped answered);
  bool take_dump(Worker& worker, const ControlMessage& message);
  void end_dump(Worker& worker);  // of a worker that has ended
  void answer_dump(Worker& worker, const Result<std::string>& payload);
  bool end_worker(Worker& worker, const std::string& why);
  void became_ready(Worker& worker);
  bool cannot_start() const;
  void start_failed(const std::string& why);
  bool hand_over(Worker& worker, Client& client);
  void learn(const control::Devices& devices);
  void divide_gpus();
  void tell_of_partitions() const;
  void await_ends();
  void reap();
  void ended(Worker& worker, int wait_status);
  std::string leave_cgroup(Worker& worker, int wait_status);
  void leave_behind();
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
  std::map<std::string, quota::Partitions::Wish> partitioned_;  // as partitions_ knows it
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
  uint64_t server_id_ = 0;  // random: names of what is shared are good for this process only
  uint64_t next_ticket_ = 1;
  uint64_t next_question_ = 1;
};

}  // namespace gpupool::server
