// Records who used this host's GPUs, when and how much: a structured line for each session's start and end
// and for each refused client, in poold's log and optionally in a JSON file (common/log/audit_file.h). The
// daemon and the admin service use it on poold's thread.
#pragma once
#include <span>
#include <string>

#include "common/log/audit_file.h"
#include "common/log/log.h"
#include "server/poold/upgrade/state.pb.h"
#include "server/poold/workers/refusal.h"
#include "server/poold/workers/worker_pool.h"
#include "server/quota/quota.h"

namespace gpupool::server {

class Audit {
 public:
  explicit Audit(std::string file) : file_(std::move(file)) {}  // empty: no file

  // Opens the file, or reopens it after a rotation. On failure the old file stays in use.
  Result<void> open() { return file_.open(); }
  // True if the file accepts no records. No session should begin then.
  bool stalled() const { return file_.stalled(); }
  bool written() const { return file_.written(); }  // all records are in the file
  // For this process's next program (server/poold/upgrade): its records continue these.
  void save(upgrade::State& to) const;
  void restore(const upgrade::State& from);  // before open()
  AuditFile::Counts counts() const { return file_.counts(); }
  void started(const SessionView& session, const quota::Quota& quota);
  void ended(const SessionView& session, const std::string& reason, bool crashed);
  void broken(const SessionView& session, const BreakEvent& event);  // or resumed
  void denied(const Client& client, const Refusal& refusal);
  // Records the number of clients refused without a record of their own within about a second. Written to the
  // file only.
  void denied_too(uint64_t count);
  // Records an administrator's change over the admin socket: the action, its object and details.
  void administered(std::string_view does, const std::string& on, const std::string& how);
  // Records how an administrator's request to migrate a session to the server at `address` has ended.
  void migration_ended(uint64_t session, const std::string& address,
                       const Result<Migrations::Outcome>& outcome);
  // Records that this program goes on with the sessions of the previous one.
  void upgraded(const upgrade::State& from);
  // Records an event of a suspended session (Suspensions::Told).
  void suspension(std::string_view event, const SuspendedSession& session,
                  const SuspendedSession::Outcome& outcome);
  void reloaded(const std::string& file, size_t tenants);

 private:
  void write(log::Level level, std::string_view event, std::span<const log::Field> fields);
  void write(log::Level level, std::string_view event, std::initializer_list<log::Field> fields) {
    write(level, event, std::span(fields.begin(), fields.size()));
  }

  AuditFile file_;
};

}  // namespace gpupool::server
