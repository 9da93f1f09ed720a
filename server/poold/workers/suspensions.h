// Suspended sessions (docs/adr/0038-suspended-sessions.md): has a session's worker send it to a file, keeps
// the client waiting meanwhile, and gives both to another worker later. The file is there until the client
// says that its session has gone on. Owned by WorkerPool; poold's thread.
//
// suspensions_clients.cc has what concerns clients that return, and their new workers; suspensions_upgrade.cc
// what concerns upgrades of poold.
#pragma once
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/client.h"
#include "server/poold/workers/migrations.h"
#include "server/poold/workers/refusal.h"
#include "server/poold/workers/suspended_files.h"

namespace gpupool::server {

struct SuspendedSession {
  using Clock = std::chrono::steady_clock;
  enum class State {
    storing,    // its worker is to send it to a file
    stored,     // the file is complete, and the client is about to leave the worker
    suspended,  // without a worker
    restoring,  // a new worker executes the file
    restored,   // the new worker has all of it, and the client is about to go on there
  };
  // How a request of an administrator has ended.
  struct Outcome {
    bool done = false;
    std::string reason;    // printable; why not
    std::string path;      // of the file; empty: in memory
    uint64_t bytes = 0;    // of the file
    uint64_t session = 0;  // as which it goes on
    std::chrono::milliseconds time{0};
  };
  // ErrorCode::closed: the session is over.
  using Answered = std::function<void(const Result<Outcome>&)>;

  uint64_t number = 0;
  suspension::Header header;
  State state = State::storing;
  SuspendedFiles::File file;
  std::shared_ptr<std::atomic<uint64_t>> bytes;  // written until now
  bool to_disk = false;
  std::string failure;            // why there is no complete file
  SuspendedFiles::Shared socket;  // poold's end, while storing or restoring
  // Becomes readable when the worker sends, in State::storing; null: a thread writes the file, or has done
  // so.
  std::shared_ptr<asio::posix::stream_descriptor> arrival;
  bool is_written = false;      // a thread writes the file now
  uint64_t worker_session = 0;  // number of the session in the new worker
  std::string came_back;        // while restoring: why the client has left the new worker; empty: it has not
  std::chrono::system_clock::time_point since;
  std::chrono::milliseconds resume_timeout{0};
  std::optional<Client> client;  // waits
  Clock::time_point client_since, last_seen;
  uint64_t last_attempt = 0;
  bool wanted = false;                   // an administrator has asked to resume it
  std::string at;                        // the server where the client is to go on; empty: here
  bool sent_away = false;                // it was told so
  std::optional<Credential> credential;  // of the client; nullopt: not known
  bool over_tls = false;                 // the client's last connection was encrypted
  Clock::time_point asked;
  Answered answered;  // of the present request

  // Whether the session has left the worker that it had when it was to be suspended.
  bool has_left() const { return state >= State::suspended; }
  std::chrono::milliseconds suspended_for() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now() - since);
  }
};

class Suspensions {
 public:
  using Session = SuspendedSession;
  using Outcome = SuspendedSession::Outcome;
  using Answered = SuspendedSession::Answered;
  struct Settings {
    SuspendedFiles::Settings files;
    std::chrono::milliseconds resume_timeout{0};
  };
  struct Hooks {
    std::function<void(Client)> assign;  // gives a client a new session
    std::function<void(Client, Refusal)> refuse;
    std::function<void(uint64_t session, const std::string& reason)> end_session;
    std::function<uint64_t()> new_number;  // for a session that came from a file
  };
  struct Order {
    bool to_disk = false;
    bool encrypts = false;
  };
  struct Counts {
    uint64_t suspended = 0, not_suspended = 0, resumed = 0, not_resumed = 0;
    uint64_t dropped = 0;  // over while they were suspended
  };
  // `event`: "session_suspended", "session_not_suspended", "suspended_session_resumed",
  // "suspended_session_not_resumed" or "suspended_session_dropped".
  using Told = std::function<void(std::string_view event, const Session&, const Outcome&)>;

  Suspensions(asio::io_context& context, Workers& workers, Migrations& migrations, Settings settings,
              Hooks hooks);
  Suspensions(const Suspensions&) = delete;
  Suspensions& operator=(const Suspensions&) = delete;

  void on_event(Told told) { told_.push_back(std::move(told)); }
  // A session for which this holds is not resumed: the GPUs of its lease may be another's now.
  void keep_when(std::function<bool(const Session&)> keeps) { keeps_ = std::move(keeps); }
  // Finds the sessions that an earlier poold has suspended to the folder.
  void start();
  // Answers the clients that wait. Files on disk stay.
  void stop();

  // Suspends a session. Calls `answered` once, after this has returned success. Errors as
  // Migrations::request().
  Result<void> suspend(uint64_t session, const Order& order, Answered answered);
  // Resumes a session here, or has its client go on at the server at `at`, which must have the file.
  // ErrorCode::unavailable: no suspended session has this number; refused: it is being resumed already;
  // closed: its client must not go on there, or its lease is suspended.
  Result<void> resume(uint64_t session, const std::string& at, Answered answered);
  // Resumes the session of a file, when its client comes.
  void resume_file(const std::string& path, Answered answered);
  // Ends a suspended session. Returns false if none has this number.
  bool end(uint64_t session, const std::string& reason);
  void end_all(const std::function<std::optional<std::string>(const Client&)>& reason);

  // A client with one of the numbers in wire/migration.h in place of a connection's.
  void returns(Client client);
  // The worker has begun a session for the client of a suspended session.
  void begin_restoring(const Client& client, Worker& worker);
  // The client of a suspended session has got no worker.
  void not_assigned(Client client, const Refusal& refusal);
  void session_ended(const Worker& worker);

  bool empty() const { return sessions_.empty(); }
  // Number of the tenant's suspended sessions.
  size_t count(const std::string& tenant) const;
  // Returns null if the session is neither suspended nor about to be.
  const Session* find(uint64_t number) const;
  void for_each(const std::function<void(const Session&)>& visit) const;
  const Counts& counts() const { return counts_; }
  const SuspendedFiles& files() const { return files_; }
  // Calls `visit` with the name and a reference of each counter.
  template <class F>
  void for_each_counter(F&& visit) {
    visit("sessions_suspended", counts_.suspended);
    visit("sessions_not_suspended", counts_.not_suspended);
    visit("suspended_sessions_resumed", counts_.resumed);
    visit("suspended_sessions_not_resumed", counts_.not_resumed);
    visit("suspended_sessions_dropped", counts_.dropped);
  }

  // For an upgrade (suspensions_upgrade.cc, server/poold/upgrade/upgrade.h).
  //
  // Starts no thread that moves a session, until unpause(). Clients of suspended sessions wait.
  void pause() { paused_ = true; }
  void unpause();
  // Why this process's program cannot be replaced now: a thread is at work. Empty: it can be.
  std::string unfinished() const;
  // Has the waiting clients ask again.
  void give_up_waiting();
  // Only when paused and without anything unfinished.
  void save(upgrade::Pool& to) const;
  void restore(const upgrade::Pool& from);
  // ErrorCode::malformed: this program cannot resume the session.
  static Result<void> check(const upgrade::SuspendedSession& session);
  // What to do with the answer of the session's client to a request to suspend it.
  Migrations::Answered answer_of(uint64_t number) {
    return [this, number](const auto& outcome) { client_answered(number, outcome); };
  }

 private:
  using Clock = SuspendedSession::Clock;
  using State = SuspendedSession::State;
  using Sessions = std::map<uint64_t, Session>;

  Result<void> check(const Order& order) const;
  Session* find(uint64_t number);
  Session* find_client(const Client& client);
  void await_worker(Session& session);
  void store(Session& session);
  void go_on();
  void stored(uint64_t number, Result<SuspendedFiles::File> file);
  void client_answered(uint64_t number, const Result<Migrations::Outcome>& outcome);
  void become_suspended(Session& session);
  void add_found(SuspendedFiles::Found found, bool wanted, Answered answered);
  void keep_waiting(Client client, const std::string& why, const std::string& moved_to = {});
  void send_away(Session& session, Client client);
  Session* find_assigned(const Client& client);
  void let_go(Session& session);
  void forget(Session& session);
  void leave_worker(Session& session, const Client& client);
  void restore(Session& session);
  void restored(uint64_t number, uint64_t worker_session, const Result<void>& result);
  void not_restored(Session& session, const std::string& why);
  void answer(Session& session, std::string_view event, Outcome outcome);
  void drop(Sessions::iterator session, const std::string& reason);
  void tell(std::string_view event, const Session& session, const Outcome& outcome);
  void look_again();
  bool has_session(const std::string& session_id) const;
  bool begins_nothing() const { return paused_ || scanning_; }
  void take_over(const upgrade::SuspendedSession& from);

  asio::io_context& context_;
  Workers& workers_;
  Migrations& migrations_;
  const Settings settings_;
  const Hooks hooks_;
  SuspendedFiles files_;
  asio::steady_timer timer_;
  bool looking_ = false;   // timer_ runs
  bool scanning_ = false;  // the folder has not been read yet
  bool stopped_ = false;
  bool paused_ = false;  // for an upgrade
  Sessions sessions_;    // by number
  std::vector<Told> told_;
  std::function<bool(const Session&)> keeps_ = [](const Session&) { return false; };
  Counts counts_;
};

}  // namespace gpupool::server
