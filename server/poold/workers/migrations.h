// Passes an operator's request to migrate a session (docs/adr/0037-migration.md), or to suspend it
// (docs/adr/0038-suspended-sessions.md), to its worker, and the client's answer back. A session has at most
// one request at a time, which stays open until the worker answers or the session ends, however long its
// caller waits. Owned by WorkerPool; poold's thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "server/handover/handover.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/workers.h"

namespace gpupool::server {

class Migrations {
 public:
  struct Outcome {
    bool migrated = false;
    std::string reason;  // printable; why it has not migrated
    std::chrono::milliseconds time{0};
  };
  // The error's code is ErrorCode::closed: the session has ended without an answer.
  using Answered = std::function<void(const Result<Outcome>&)>;
  struct Counts {
    uint64_t migrated = 0;  // includes sessions that their clients have migrated without a request
    uint64_t failed = 0;    // the client, or its worker for it, has declined or failed
    uint64_t lost = 0;      // the session has ended without an answer
  };

  explicit Migrations(Workers& workers) : workers_(workers) {}
  Migrations(const Migrations&) = delete;
  Migrations& operator=(const Migrations&) = delete;

  // Calls `answered` once, after this has returned success. ErrorCode::unavailable: there is no such session;
  // refused: it has an open request; invalid: the address is empty, too long or not printable; closed: the
  // session is ending, or its worker does not read.
  Result<void> request(uint64_t session, const std::string& address, Answered answered);
  // The same, to suspend the session: its worker sends it to `socket`, which stays the caller's.
  Result<void> request_suspension(uint64_t session, int socket, Answered answered);
  // The request that the session has not answered; an empty address: none.
  struct Open {
    std::string address;   // or what stands for it in messages
    bool to_file = false;  // the session is being suspended
    std::chrono::milliseconds time{0};
  };
  Open open(uint64_t session) const;
  // Takes a worker's report. Returns false if the worker was ended because the report is invalid.
  bool ended(Worker& worker, const ControlMessage& message);
  void session_ended(const Worker& worker, const std::string& how);
  const Counts& counts() const { return counts_; }
  // For this process's next program (server/poold/upgrade). It calls `answered` for restored requests.
  void save(upgrade::Pool& to) const;
  void save(uint64_t session, upgrade::Session& to) const;
  void restore(const upgrade::Pool& from);
  void restore(uint64_t session, const upgrade::Session& from, Answered answered);

 private:
  using Clock = std::chrono::steady_clock;
  struct Request {
    uint64_t number = 0;
    std::string address;
    bool to_file = false;
    Clock::time_point since;
    Answered answered;
  };

  Result<void> ask(uint64_t session, const std::string& address, int socket, Answered answered);
  bool is_valid(const Worker& worker, const ControlMessage& message) const;

  Workers& workers_;
  std::map<uint64_t, Request> open_;  // by session
  Counts counts_;
  uint64_t next_number_ = 1;
};

}  // namespace gpupool::server
