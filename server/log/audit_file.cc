#include "server/log/audit_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "server/log/write_line.h"

namespace gpupool::server {

struct AuditFile::Queue {
  explicit Queue(std::string path) : path(std::move(path)) {}
  ~Queue() {
    if (descriptor >= 0) ::close(descriptor);
  }
  Result<int> open_file() const;
  void run();
  void reopen();
  bool done() const { return waiting.empty() && lost == 0 && !reopens && !busy; }
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience) {
    return changed.wait_for(lock, patience, [this] { return done(); });
  }

  const std::string path;
  int descriptor = -1;  // the thread's, once it runs
  std::mutex mutex;     // what follows; never held while writing
  std::condition_variable changed;
  std::deque<std::string> waiting;
  uint64_t lost = 0;
  bool reopens = false, busy = false, ends = false;
  std::optional<std::chrono::steady_clock::time_point> behind_since;  // a line was not written in time
};

Result<int> AuditFile::Queue::open_file() const {
  const int opened = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
  if (opened >= 0) return opened;
  return Error{ErrorCode::unavailable, "cannot open the audit file '" + path + "': " + std::generic_category().message(errno)};
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
    }
    lock.unlock();
    if (again) reopen();
    if (!log::write_line(descriptor, line)) {
      log::error("audit_failed", {{"file", path}, {"reason", std::generic_category().message(errno)}, {"record", line}});
    }
    lock.lock();
    busy = false;
    if (done() && std::exchange(behind_since, std::nullopt)) log::warning("audit_goes_on", {{"file", path}});
    changed.notify_all();
  }
}

AuditFile::AuditFile(std::string path) : queue_(path.empty() ? nullptr : std::make_shared<Queue>(std::move(path))) {}

AuditFile::~AuditFile() {
  if (!queue_) return;
  std::unique_lock lock(queue_->mutex);
  queue_->ends = true;
  queue_->changed.notify_all();
  if (!started_ || queue_->wait(lock, kLastPatience)) return;
  log::error("audit_failed", {{"file", queue_->path}, {"records", queue_->waiting.size()}, {"reason", "they could not be written before the end"}});
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
  sigset_t all, mask;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &mask);
  std::thread([queue = queue_] { queue->run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  return {};
}

void AuditFile::append(std::string line, size_t most_waiting) {
  Queue& queue = *queue_;
  std::unique_lock lock(queue.mutex);
  if (queue.waiting.size() >= most_waiting) {
    if (queue.lost++ == 0) log::error("audit_records_lost", {{"file", queue.path}, {"reason", "the file takes no more lines"}, {"record", line}});
    return;
  }
  queue.waiting.push_back(std::move(line));
  queue.changed.notify_all();
  if (queue.behind_since || queue.wait(lock, kPatience)) return;
  queue.behind_since = std::chrono::steady_clock::now();
  log::error("audit_stalled", {{"file", queue.path}, {"reason", "it takes no lines; see \"Logs and audit\" in docs/operations.md"}});
}

void AuditFile::append(std::string_view event, std::span<const log::Field> fields) {
  if (started_) append(log::json_line(event, fields), kMostWaiting);
}

void AuditFile::append_if_room(std::string_view event, std::initializer_list<log::Field> fields) {
  if (started_) append(log::json_line(event, std::span(fields.begin(), fields.size())), kMostWaiting / 2);
}

bool AuditFile::stalled() const {
  if (!queue_) return false;
  const std::lock_guard lock(queue_->mutex);
  return queue_->behind_since && std::chrono::steady_clock::now() - *queue_->behind_since > kStalled;
}

}  // namespace gpupool::server
