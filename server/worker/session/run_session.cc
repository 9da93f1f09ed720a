#include "server/worker/session/run_session.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "server/worker/copies/bandwidth.h"
#include "server/worker/session/background.h"
#include "server/worker/session/dump.h"
#include "server/worker/session/executor.h"
#include "server/worker/session/refusals.h"

namespace gpupool::worker {
namespace {

// How long freeing the client's objects may take; an endless kernel must not keep the process alive.
constexpr std::chrono::milliseconds kTearDownTime{1800};

// Exits the process unless destroyed in time.
class Watchdog {
 public:
  explicit Watchdog(int status)
      : thread_([this, status] {
          std::unique_lock lock(mutex_);
          if (!done_.wait_for(lock, kTearDownTime, [this] { return is_done_; })) std::_Exit(status);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;
};

}  // namespace

int run_session(SessionStart start) {
  const int stop_descriptor = start.stop_descriptor;
  const auto bandwidth = std::make_shared<Bandwidth>(start.usage);
  start.connection = std::make_unique<MeteredConnection>(std::move(start.connection), bandwidth);
  start.bandwidth = bandwidth;
  const auto accept_bulk = start.bulk_connections;
  Executor executor(start);
  send_refusals(executor.outbox, executor.ledger, start);
  if (start.capture_output) {
    if (const auto captured = executor.capture.start(); !captured) {
      executor.outbox.end(captured.error().message);
      return 1;
    }
  }
  int status = 1;
  {
    const Background background(executor, stop_descriptor);
    if (accept_bulk)
      accept_bulk([&executor, bandwidth](auto connection, std::optional<uint64_t> peer_copy) {
        executor.links.add(std::make_unique<MeteredConnection>(std::move(connection), bandwidth), peer_copy);
      });
    if (start.control) {
      start.control->handle(
          server::ControlKind::end_session,
          [&executor](const server::ControlMessage& message) { executor.outbox.end(message.payload); });
    }
    {
      const DumpServer dumps(executor);
      status = executor.run() ? 0 : 1;
    }
    executor.outbox.close();
    if (start.control) start.control->handle(server::ControlKind::end_session, nullptr);
    if (accept_bulk) accept_bulk(nullptr);
    const Watchdog watchdog(status);
    executor.tear_down();
  }
  return status;
}

}  // namespace gpupool::worker
