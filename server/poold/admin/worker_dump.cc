#include "server/poold/admin/worker_dump.h"

#include <string_view>

#include "common/text/printable.h"

namespace gpupool::server {
namespace {

constexpr size_t kLongestText = 128;
constexpr int kMostEntries = 64;  // of a list

std::string short_text(const std::string& text) {
  return printable(std::string_view(text).substr(0, kLongestText));
}

template <class List>
void shorten(List& list) {
  if (list.size() > kMostEntries) list.DeleteSubrange(kMostEntries, list.size() - kMostEntries);
}

// Makes every text printable and every list short.
void sanitize(admin::WorkerDump& dump) {
  admin::ExecutorDump& executor = *dump.mutable_executor();
  executor.set_command(short_text(executor.command()));
  executor.set_driver_function(short_text(executor.driver_function()));
  executor.set_waits_for(short_text(executor.waits_for()));
  shorten(*dump.mutable_kept());
  for (admin::KeptCommand& kept : *dump.mutable_kept()) {
    kept.set_command(short_text(kept.command()));
    kept.set_waits_for(short_text(kept.waits_for()));
  }
  shorten(*dump.mutable_gates());
  for (admin::ClosedGate& gate : *dump.mutable_gates()) gate.set_reason(short_text(gate.reason()));
  shorten(*dump.mutable_copies());
  shorten(*dump.mutable_waits());
  for (admin::ParkedWait& wait : *dump.mutable_waits()) {
    wait.set_purpose(short_text(wait.purpose()));
    wait.set_driver_function(short_text(wait.driver_function()));
    wait.set_waits_for(short_text(wait.waits_for()));
  }
  shorten(*dump.mutable_bulk_connections());
  for (admin::BulkConnection& connection : *dump.mutable_bulk_connections()) {
    connection.set_state(short_text(connection.state()));
    connection.set_receiver(short_text(connection.receiver()));
    connection.set_sender(short_text(connection.sender()));
  }
  shorten(*dump.mutable_work());
  shorten(*dump.mutable_busy_locks());
  for (std::string& lock : *dump.mutable_busy_locks()) lock = short_text(lock);
}

}  // namespace

Result<admin::WorkerDump> read_worker_dump(const std::string& bytes) {
  admin::WorkerDump dump;
  if (!dump.ParseFromString(bytes)) return Error{ErrorCode::malformed, "cannot parse the worker's answer"};
  sanitize(dump);
  return dump;
}

}  // namespace gpupool::server
