#include "common/log/audit_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "common/blocked_signals.h"
#include "common/files/exposure.h"
#include "common/log/write_line.h"

namespace gpupool {

struct AuditFile::Queue {
  explicit Queue(std::string path);
  ~Queue() {
    if (descriptor >= 0) ::close(descriptor);
  }
  Result<int> open_file() const;
  void number(std::string& line);  // requires `mutex`
  bool write(const std::string& line);
  void run();
  void reopen();
  bool done() const { return waiting.empty() && lost == 0 && !reopens && !busy; }
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience) {
    return changed.wait_for(lock, patience, [this] { return done(); });
  }

  const std::string path;
  std::string boot;     // hexadecimal
  int descriptor = -1;  // used by the thread only, once it runs
  bool torn = false;    // the file ends in a part of a line; used by the thread only
  std::mutex mutex;     // guards the members below; never held while writing
  std::condition_variable changed;
  std::deque<std::string> waiting;
  uint64_t lost = 0;  // since the last audit_records_lost record
  Counts counts;
  bool reopens = false, busy = false, ends = false;
  std::optional<std::chrono::steady_clock::time_point> behind_since;  // a line was not written in time
};

AuditFile::Queue::Queue(std::string path) : path(std::move(path)) {
  uint64_t random = 0;
  // Never fails for so few bytes.
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) std::terminate();
  char digits[2 * sizeof random + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(random));
  boot = digits;
}

// Inserts `boot` and `seq` after the opening brace.
void AuditFile::Queue::number(std::string& line) {
  line.insert(1, "\"boot\":\"" + boot + "\",\"seq\":" + std::to_string(++counts.records) + ",");
}

Result<int> AuditFile::Queue::open_file() const {
  const int opened = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
  if (opened < 0) {
    return Error{ErrorCode::unavailable,
                 "cannot open the audit file '" + path + "': " + std::generic_category().message(errno)};
  }
  struct stat about {};
  if (::fstat(opened, &about) == 0 && !files::access_of_others(about).writable) return opened;
  ::close(opened);
  return Error{ErrorCode::invalid, "refusing to use the audit file '" + path +
                                       "': other users can write it and forge records; run chmod go-w"};
}

// After a line that could only be written in part (a full disk), begins a new line first.
bool AuditFile::Queue::write(const std::string& line) {
  const std::string text = (torn ? "\n" : "") + line;
  std::string_view rest = text;
  const bool written = log::write_rest(descriptor, rest);
  if (rest.size() != text.size()) torn = !rest.empty() && rest.size() != line.size();
  return written;
}

void AuditFile::Queue::reopen() {
  const auto opened = open_file();
  if (!opened) return log::error("audit_failed", {{"reason", opened.error().message}});
  ::close(std::exchange(descriptor, *opened));
}

void AuditFile::Queue::run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return ends || !done(); });
    if (done()) return;
    busy = true;
    const bool again = std::exchange(reopens, false);
    std::string line;
    if (!waiting.empty()) {
      line = std::move(waiting.front());
      waiting.pop_front();
    } else if (lost != 0) {
      const log::Field fields[] = {{"count", std::exchange(lost, 0)}};
      line = log::json_line("audit_records_lost", fields);
      number(line);
    }
    lock.unlock();
    if (again) reopen();
    const bool written = line.empty() || write(line);
    if (!written)
      log::error("audit_failed",
                 {{"file", path}, {"reason", std::generic_category().message(errno)}, {"record", line}});
    lock.lock();
    counts.lost += !written;
    busy = false;
    if (done() && std::exchange(behind_since, std::nullopt)) log::warning("audit_goes_on", {{"file", path}});
    changed.notify_all();
  }
}

AuditFile::AuditFile(std::string path)
    : queue_(path.empty() ? nullptr : std::make_shared<Queue>(std::move(path))) {}

AuditFile::~AuditFile() {
  if (!queue_) return;
  std::unique_lock lock(queue_->mutex);
  queue_->ends = true;
  queue_->changed.notify_all();
  if (!started_ || queue_->wait(lock, kLastPatience)) return;
  log::error("audit_failed", {{"file", queue_->path},
                              {"records", queue_->waiting.size()},
                              {"reason", "not written before the process exited"}});
}

bool AuditFile::written() const {
  if (!queue_) return true;
  const std::lock_guard lock(queue_->mutex);
  return queue_->done();
}

AuditFile::Identity AuditFile::identity() const {
  if (!queue_) return {};
  const std::lock_guard lock(queue_->mutex);
  return {queue_->boot, queue_->counts};
}

void AuditFile::continue_as(const Identity& identity) {
  if (!queue_ || identity.boot.empty()) return;
  const std::lock_guard lock(queue_->mutex);
  queue_->boot = identity.boot;
  queue_->counts = identity.counts;
}

Result<void> AuditFile::open() {
  if (!queue_) return {};
  if (started_) {
    std::unique_lock lock(queue_->mutex);
    queue_->reopens = true;
    queue_->changed.notify_all();
    if (!queue_->behind_since) (void)queue_->wait(lock, kPatience);
    return {};
  }
  const auto opened = queue_->open_file();
  if (!opened) return opened.error();
  queue_->descriptor = *opened;
  started_ = true;
  const BlockedSignals blocked;
  std::thread([queue = queue_] { queue->run(); }).detach();
  return {};
}

void AuditFile::append(std::string line, size_t most_waiting) {
  Queue& queue = *queue_;
  std::unique_lock lock(queue.mutex);
  queue.number(line);
  if (queue.waiting.size() >= most_waiting) {
    ++queue.counts.lost;
    if (queue.lost++ == 0) {
      log::error(
          "audit_records_lost",
          {{"file", queue.path}, {"reason", "the queue of unwritten records is full"}, {"record", line}});
    }
    return;
  }
  queue.waiting.push_back(std::move(line));
  queue.changed.notify_all();
  if (queue.behind_since || queue.wait(lock, kPatience)) return;
  queue.behind_since = std::chrono::steady_clock::now();
  log::error("audit_stalled",
             {{"file", queue.path},
              {"reason", "writing to the file blocks; see \"Logs and audit\" in docs/operations.md"}});
}

void AuditFile::append(std::string_view event, std::span<const log::Field> fields) {
  if (started_) append(log::json_line(event, fields), kMostWaiting);
}

void AuditFile::append_if_room(std::string_view event, std::initializer_list<log::Field> fields) {
  if (started_) append(log::json_line(event, std::span(fields.begin(), fields.size())), kMostWaiting / 2);
}

AuditFile::Counts AuditFile::counts() const {
  if (!queue_) return {};
  const std::lock_guard lock(queue_->mutex);
  return queue_->counts;
}

bool AuditFile::stalled() const {
  if (!queue_) return false;
  const std::lock_guard lock(queue_->mutex);
  return queue_->behind_since && std::chrono::steady_clock::now() - *queue_->behind_since > kStalled;
}

}  // namespace gpupool
