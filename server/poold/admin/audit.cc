#include "server/poold/admin/audit.h"

#include <algorithm>
#include <vector>

#include "common/text/names.h"
#include "common/text/units.h"
#include "common/version.h"

namespace gpupool::server {
namespace {

// The page is untrusted: the sum may wrap.
uint64_t sum(const quota::SessionPage& page, std::atomic<uint64_t> quota::SessionPage::Gpu::*what) {
  uint64_t total = 0;
  for (const auto& gpu : page.gpus) total += (gpu.*what).load(std::memory_order_relaxed);
  return total;
}

uint64_t most(const quota::SessionPage& page, std::atomic<uint64_t> quota::SessionPage::Gpu::*what) {
  uint64_t highest = 0;
  for (const auto& gpu : page.gpus) highest = std::max(highest, (gpu.*what).load(std::memory_order_relaxed));
  return highest;
}

// Returns "1: memory 2147483648 compute 25, ..." for the GPUs whose limits differ from the tenant's default.
std::string other_shares(const quota::Quota& quota) {
  std::string text;
  for (const auto& [gpu, limits] : quota.gpus) {
    const auto share = quota.with(limits);
    text += (text.empty() ? "" : ", ") + std::to_string(gpu) + ": memory " +
            (share.memory_bytes == 0 ? "unlimited" : std::to_string(share.memory_bytes)) + " compute " +
            percent_text(share.compute_milli);
  }
  return text;
}

// Fields that identify a session, the first ones of both of its records.
std::vector<log::Field> fields_of(const SessionView& session) {
  const Client& client = session.client;
  return {{"session", session.number},
          {"worker", session.worker},
          {"tenant", client.tenant},
          {"lease", client.lease},
          {"credential", client.credential.text()},
          {"client", client.address},
          {"transport", client.transport},
          {"host", client.host},
          {"pid", client.pid},
          {"program", client.program}};
}

}  // namespace

void Audit::started(const SessionView& session, const quota::Quota& quota) {
  std::vector<log::Field> fields = fields_of(session);
  if (quota.each.memory_bytes != 0)
    fields.emplace_back("quota_memory", quota.each.memory_bytes);  // 0 means no limit
  fields.emplace_back("quota_compute", log::Number{percent_text(quota.each.compute_milli)});
  if (!quota.gpus.empty()) fields.emplace_back("quota_gpus", other_shares(quota));
  fields.emplace_back("quota_mode", quota::name_of(quota.mode));
  write(log::Level::info, "session_started", fields);
}

void Audit::ended(const SessionView& session, const std::string& reason, bool crashed) {
  using Gpu = quota::SessionPage::Gpu;
  std::vector<log::Field> fields = fields_of(session);
  fields.insert(fields.end(),
                {{"duration_ms", std::chrono::duration_cast<std::chrono::milliseconds>(session.age).count()},
                 {"memory_peak", most(session.page, &Gpu::memory_peak)},
                 {"memory_moved", sum(session.page, &Gpu::memory_moved)},
                 {"gpu_ms", sum(session.page, &Gpu::gpu_nanoseconds) / 1'000'000},
                 {"throttled_ms", sum(session.page, &Gpu::throttled_nanoseconds) / 1'000'000},
                 {"bytes_from_client", session.page.bytes_from_client.load(std::memory_order_relaxed)},
                 {"bytes_to_client", session.page.bytes_to_client.load(std::memory_order_relaxed)},
                 {"calls", session.page.calls.load(std::memory_order_relaxed)},
                 {"errors", session.page.errors.load(std::memory_order_relaxed)},
                 {"resumed", session.breaks.resumed},
                 {"waited_ms", session.breaks.waited.count()},
                 {"reason", reason}});
  write(crashed ? log::Level::error : log::Level::info, "session_ended", fields);
}

// Written to the file only: the worker logs breaks.
void Audit::broken(const SessionView& session, const BreakEvent& event) {
  if (!event.resumed) {
    return file_.append_if_room("session_waits_for_client", {{"session", session.number},
                                                             {"worker", session.worker},
                                                             {"tenant", session.client.tenant},
                                                             {"link", event.link}});
  }
  file_.append_if_room("session_resumed", {{"session", session.number},
                                           {"worker", session.worker},
                                           {"tenant", session.client.tenant},
                                           {"link", event.link},
                                           {"waited_ms", event.waited.count()},
                                           {"resent_bytes", event.resent_bytes},
                                           {"resumed", session.breaks.resumed}});
}

// Written to the file only: Acceptor logs the refusal.
void Audit::denied(const Client& client, const Refusal& refusal) {
  file_.append_if_room("session_denied", {{"client", client.address},
                                          {"lease", client.lease},
                                          {"transport", client.transport},
                                          {"host", brief_name(client.host)},
                                          {"pid", client.pid},
                                          {"program", brief_name(client.program)},
                                          {"status", control::HelloReply::Status_Name(refusal.status)},
                                          {"reason", refusal.reason}});
}

// Written to the file only: Acceptor logs clients_refused_unlogged.
void Audit::denied_too(uint64_t count) {
  file_.append_if_room("sessions_denied_too", {{"count", count}});
}

void Audit::administered(std::string_view does, const std::string& on, const std::string& how) {
  file_.append("administrator", {{"does", does}, {"on", cut_name(on)}, {"how", cut_name(how)}});
}

void Audit::migration_ended(uint64_t session, const std::string& address,
                            const Result<Migrations::Outcome>& outcome) {
  std::vector<log::Field> fields{{"session", session}, {"to", cut_name(address)}};
  if (outcome) {
    fields.emplace_back("result", outcome->migrated ? "migrated" : "failed");
    fields.emplace_back("duration_ms", outcome->time.count());
  } else {
    fields.emplace_back("result", "lost");
  }
  fields.emplace_back("reason", outcome ? outcome->reason : outcome.error().message);
  write(log::Level::info, "migration_ended", fields);
}

void Audit::save(upgrade::State& to) const {
  const AuditFile::Identity identity = file_.identity();
  to.set_audit_boot(identity.boot);
  to.set_audit_records(identity.counts.records);
  to.set_audit_lost(identity.counts.lost);
}

void Audit::restore(const upgrade::State& from) {
  file_.continue_as({from.audit_boot(), {from.audit_records(), from.audit_lost()}});
}

void Audit::upgraded(const upgrade::State& from) {
  const auto& suspended = from.pool().suspended();
  const auto has_left = [](const upgrade::SuspendedSession& session) {
    return session.state() >= static_cast<uint32_t>(SuspendedSession::State::suspended);
  };
  write(log::Level::info, "upgraded",
        {{"from", cut_name(from.version())},
         {"to", kVersion},
         {"sessions", from.pool().sessions_size()},
         {"suspended", std::count_if(suspended.begin(), suspended.end(), has_left)}});
}

void Audit::suspension(std::string_view event, const SuspendedSession& session,
                       const SuspendedSession::Outcome& outcome) {
  std::vector<log::Field> fields{{"session", session.number},
                                 {"tenant", session.header.tenant()},
                                 {"lease", session.header.lease()},
                                 {"to", session.to_disk ? "disk" : "memory"}};
  if (!session.file.path.empty()) fields.emplace_back("file", cut_name(session.file.path));
  fields.emplace_back("encrypted", session.file.encrypted() ? "yes" : "no");
  fields.emplace_back("bytes", session.file.bytes);
  if (outcome.session != 0) fields.emplace_back("as", outcome.session);
  fields.emplace_back("duration_ms", outcome.time.count());
  if (!outcome.done) fields.emplace_back("reason", outcome.reason);
  write(log::Level::info, event, fields);
}

void Audit::reloaded(const std::string& file, size_t tenants) {
  write(log::Level::info, "reloaded", {{"file", file}, {"tenants", tenants}});
}

void Audit::write(log::Level level, std::string_view event, std::span<const log::Field> fields) {
  log::write(level, event, fields);
  file_.append(event, fields);
}

}  // namespace gpupool::server
