// Who used this host's GPUs, when, and how much: one structured line for each session's start and end and each client that was turned away,
// in poold's log and, if wished, appended to a file as JSON. poold's one thread.
#pragma once
#include <span>
#include <string>

#include "server/log/audit_file.h"
#include "server/log/log.h"
#include "server/quota/quota.h"
#include "server/refusal.h"
#include "server/worker_pool.h"

namespace gpupool::server {

class Audit {
 public:
  explicit Audit(std::string file) : file_(std::move(file)) {}  // empty: none

  // Again after a rotation; on failure the old file stays in use.
  Result<void> open() { return file_.open(); }
  // The file takes no lines: no session should begin.
  bool stalled() const { return file_.stalled(); }
  AuditFile::Counts counts() const { return file_.counts(); }
  void started(const SessionView& session, const quota::Quota& quota);
  void ended(const SessionView& session, const std::string& reason, bool crashed);
  void denied(const Client& client, const Refusal& refusal);
  // Clients that were turned away without a line of their own, within about a second. For the file alone.
  void denied_too(uint64_t count);
  // An administrator's change, over the admin socket: what, and of what.
  void administered(std::string_view does, const std::string& on, const std::string& how);
  void reloaded(const std::string& file, size_t tenants);

 private:
  void write(log::Level level, std::string_view event, std::span<const log::Field> fields);
  void write(log::Level level, std::string_view event, std::initializer_list<log::Field> fields) { write(level, event, std::span(fields.begin(), fields.size())); }

  AuditFile file_;
};

}  // namespace gpupool::server
