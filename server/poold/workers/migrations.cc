#include "server/poold/workers/migrations.h"

#include <utility>

#include "common/log/log.h"
#include "common/text/printable.h"
#include "server/poold/upgrade/values.h"
#include "server/poold/workers/time_since.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

Result<void> check_address(const std::string& address) {
  if (address.empty()) return Error{ErrorCode::invalid, "the other server's address is missing"};
  if (address.size() > kMostMigrationText) {
    return Error{ErrorCode::invalid, "the other server's address is too long: at most " +
                                         std::to_string(kMostMigrationText) + " bytes"};
  }
  if (printable(address) != address)
    return Error{ErrorCode::invalid, "the other server's address has characters that are not printable"};
  return {};
}

}  // namespace

Result<void> Migrations::request(uint64_t session, const std::string& address, Answered answered) {
  if (const auto checked = check_address(address); !checked) return checked;
  return ask(session, address, -1, std::move(answered));
}

Result<void> Migrations::request_suspension(uint64_t session, int socket, Answered answered) {
  return ask(session, "a file", socket, std::move(answered));
}

Result<void> Migrations::ask(uint64_t session, const std::string& address, int socket, Answered answered) {
  Worker* const worker = workers_.serving(session);
  const std::string name = "session " + std::to_string(session);
  if (!worker) return Error{ErrorCode::unavailable, "there is no " + name};
  if (!worker->ending.empty()) return Error{ErrorCode::closed, name + " is ending: " + worker->ending};
  if (!worker->migrated.empty()) return Error{ErrorCode::closed, name + " has " + worker->migrated};
  if (const auto open = open_.find(session); open != open_.end()) {
    return Error{ErrorCode::refused,
                 name + " was asked " + std::to_string(time_since(open->second.since).count() / 1000) +
                     " s ago to migrate to " + open->second.address + ", and has not answered"};
  }
  const uint64_t number = next_number_++;
  const bool to_file = socket >= 0;
  const auto sent = send_control<ControlKind::migrate>(worker->socket(), {.number = number},
                                                       to_file ? "" : address, socket);
  if (!sent) {
    const bool exited = sent.error().code == ErrorCode::closed;  // SIGCHLD has not arrived
    return Error{ErrorCode::closed, exited ? name + " has just ended"
                                           : "the worker of " + name + " does not read its control socket"};
  }
  open_[session] = {number, address, to_file, Clock::now(), std::move(answered)};
  log::info("migration_requested", {{"session", session}, {"worker", worker->pid}, {"to", address}});
  return {};
}

Migrations::Open Migrations::open(uint64_t session) const {
  const auto open = open_.find(session);
  if (open == open_.end()) return {};
  return {open->second.address, open->second.to_file, time_since(open->second.since)};
}

bool Migrations::is_valid(const Worker& worker, const ControlMessage& message) const {
  const auto report = message.body<packet::MigrationEnded>();
  if (report.migrated > 1 || message.payload.size() > kMostMigrationText ||
      printable(message.payload) != message.payload || !worker.migrated.empty())
    return false;
  if (report.number == 0) return report.migrated == 1;
  const auto open = open_.find(worker.session);
  return open != open_.end() && open->second.number == report.number;
}

bool Migrations::ended(Worker& worker, const ControlMessage& message) {
  if (!is_valid(worker, message)) return workers_.end(worker, "invalid report of a migration");
  const auto report = message.body<packet::MigrationEnded>();
  const bool migrated = report.migrated == 1;
  if (report.number == 0) {
    ++counts_.migrated;
    worker.migrated = "migrated at its client's wish";
    return true;
  }
  const Request request = std::move(open_.extract(worker.session).mapped());
  if (!request.to_file) ++(migrated ? counts_.migrated : counts_.failed);
  if (migrated) worker.migrated = request.to_file ? "suspended" : "migrated to " + request.address;
  request.answered(Outcome{migrated, message.payload, time_since(request.since)});
  return true;
}

void Migrations::session_ended(const Worker& worker, const std::string& how) {
  auto open = open_.extract(worker.session);
  if (open.empty()) return;
  if (!open.mapped().to_file) ++counts_.lost;
  open.mapped().answered(
      Error{ErrorCode::closed, "session " + std::to_string(worker.session) + " has ended: " + how});
}

void Migrations::save(upgrade::Pool& to) const {
  to.set_next_migration(next_number_);
  to.set_migrated(counts_.migrated);
  to.set_migrations_failed(counts_.failed);
  to.set_migrations_lost(counts_.lost);
}

void Migrations::save(uint64_t session, upgrade::Session& to) const {
  const auto open = open_.find(session);
  if (open == open_.end()) return;
  upgrade::Migration& migration = *to.mutable_migration();
  migration.set_number(open->second.number);
  migration.set_address(open->second.address);
  migration.set_to_file(open->second.to_file);
  migration.set_since(upgrade::to_ns(open->second.since));
}

void Migrations::restore(const upgrade::Pool& from) {
  next_number_ = from.next_migration();
  counts_ = {from.migrated(), from.migrations_failed(), from.migrations_lost()};
}

void Migrations::restore(uint64_t session, const upgrade::Session& from, Answered answered) {
  if (!from.has_migration()) return;
  const upgrade::Migration& migration = from.migration();
  open_[session] = {migration.number(), migration.address(), migration.to_file(),
                    upgrade::steady(migration.since()), std::move(answered)};
}

}  // namespace gpupool::server
