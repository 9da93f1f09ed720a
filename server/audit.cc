#include "server/audit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace gpupool::server {
namespace {

// Of a page that the worker may have filled with anything: sums may wrap, nothing else.
uint64_t sum(const quota::SessionPage& page, std::atomic<uint64_t> quota::SessionPage::Gpu::* what) {
  uint64_t total = 0;
  for (const auto& gpu : page.gpus) total += (gpu.*what).load(std::memory_order_relaxed);
  return total;
}

uint64_t most(const quota::SessionPage& page, std::atomic<uint64_t> quota::SessionPage::Gpu::* what) {
  uint64_t highest = 0;
  for (const auto& gpu : page.gpus) highest = std::max(highest, (gpu.*what).load(std::memory_order_relaxed));
  return highest;
}

}  // namespace

Audit::~Audit() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> Audit::open() {
  if (file_.empty()) return {};
  const int opened = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
  if (opened < 0) {
    return Error{ErrorCode::unavailable, "cannot open the audit file '" + file_ + "': " + std::generic_category().message(errno)};
  }
  if (const int old = std::exchange(descriptor_, opened); old >= 0) ::close(old);
  return {};
}

void Audit::started(const SessionView& session, const quota::Quota& quota) {
  const Client& client = session.client;
  write(log::Level::info, "session_started",
        {{"session", session.number},
         {"worker", session.worker},
         {"tenant", client.tenant},
         {"client", client.address},
         {"transport", client.transport},
         {"host", client.host},
         {"pid", client.pid},
         {"program", client.program},
         {"quota_memory", quota.memory_bytes},
         {"quota_compute", quota.compute_percent},
         {"quota_mode", quota::name_of(quota.mode)}});
}

void Audit::ended(const SessionView& session, const std::string& reason, bool crashed) {
  using Gpu = quota::SessionPage::Gpu;
  const Client& client = session.client;
  write(crashed ? log::Level::error : log::Level::info, "session_ended",
        {{"session", session.number},
         {"worker", session.worker},
         {"tenant", client.tenant},
         {"client", client.address},
         {"transport", client.transport},
         {"host", client.host},
         {"pid", client.pid},
         {"program", client.program},
         {"duration_ms", std::chrono::duration_cast<std::chrono::milliseconds>(session.age).count()},
         {"memory_peak", most(session.page, &Gpu::memory_peak)},
         {"memory_moved", sum(session.page, &Gpu::memory_moved)},
         {"gpu_ms", sum(session.page, &Gpu::gpu_nanoseconds) / 1'000'000},
         {"throttled_ms", sum(session.page, &Gpu::throttled_nanoseconds) / 1'000'000},
         {"bytes_from_client", session.page.bytes_from_client.load(std::memory_order_relaxed)},
         {"bytes_to_client", session.page.bytes_to_client.load(std::memory_order_relaxed)},
         {"calls", session.page.calls.load(std::memory_order_relaxed)},
         {"errors", session.page.errors.load(std::memory_order_relaxed)},
         {"reason", reason}});
}

// The log has the front door's line.
void Audit::denied(const Client& client, const Refusal& refusal) {
  append("session_denied", {{"client", client.address},
                            {"transport", client.transport},
                            {"host", client.host},
                            {"pid", client.pid},
                            {"program", client.program},
                            {"status", control::HelloReply::Status_Name(refusal.status)},
                            {"reason", refusal.reason}});
}

void Audit::write(log::Level level, std::string_view event, std::initializer_list<log::Field> fields) {
  log::write(level, event, fields);
  append(event, fields);
}

void Audit::append(std::string_view event, std::initializer_list<log::Field> fields) {
  if (descriptor_ < 0) return;
  const std::string line = log::json_line(event, fields);
  if (::write(descriptor_, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
  log::error("audit_failed", {{"file", file_}, {"reason", std::generic_category().message(errno)}});
}

}  // namespace gpupool::server
