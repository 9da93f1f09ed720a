#include "server/worker/session/run_session.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "protocol/wire/migration.h"
#include "server/worker/copies/bandwidth.h"
#include "server/worker/session/background.h"
#include "server/worker/session/dump.h"
#include "server/worker/session/refusals.h"
#include "server/worker/session/session.h"
#include "server/worker/session/teardown.h"

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

// The tenant pays for the context from the beginning, or does not get it.
void charge_idle_context(Session& session) {
  IdleContext& idle = session.start.idle_context;
  if (idle.held() && (!session.start.visible.number_of(kIdleContextDevice) ||
                      session.memory.charge(kIdleContextDevice, idle.bytes) != CUDA_SUCCESS))
    idle.release();
}

// Takes the session's bulk connections, and that of the server that it comes from.
BulkSink sink_of(Session& session, std::shared_ptr<Bandwidth> bandwidth) {
  return [&session, bandwidth = std::move(bandwidth)](std::unique_ptr<transport::Connection> connection,
                                                      std::optional<uint64_t> peer_copy, uint64_t link) {
    if (peer_copy == wire::kAdoptSequence)
      return session.adoption.take(std::make_unique<MeteredConnection>(std::move(connection), bandwidth));
    ResumableLink resumable;
    if (link != 0 && session.start.resumable) {
      auto outer = std::make_unique<transport::ResumableConnection>(std::move(connection));
      resumable = {outer.get(), link, &session.start.resume};
      connection = std::move(outer);
    }
    session.copies.connections.add(std::make_unique<MeteredConnection>(std::move(connection), bandwidth),
                                   peer_copy, resumable);
  };
}

}  // namespace

int run_session(SessionStart start) {
  const int stop_descriptor = start.stop_descriptor;
  const auto bandwidth = std::make_shared<Bandwidth>(start.usage);
  start.connection = std::make_unique<MeteredConnection>(std::move(start.connection), bandwidth);
  start.bandwidth = bandwidth;
  const auto accept_bulk = start.bulk_connections;
  std::optional<Resumptions> resumptions;
  if (start.resumable) {
    start.resume.offers = &resumptions.emplace(*start.control);
    start.resumable->keep_deadlines();  // what the executor does from time to time goes on during a break
  }
  Session session(start);
  send_refusals(session.outbox, session.ledger, start);
  charge_idle_context(session);
  if (start.capture_output) {
    if (const auto captured = session.capture.start(); !captured) {
      session.outbox.end(captured.error().message);
      return 1;
    }
  }
  int status = 1;
  {
    const Background background(session, stop_descriptor);
    if (accept_bulk) accept_bulk(sink_of(session, bandwidth));
    if (start.control) {
      start.control->handle(server::ControlKind::end_session,
                            [&session](const server::ControlMessage& message) {
                              session.outbox.end(message.payload);
                              session.adoption.stop();  // before the background thread's next look
                            });
    }
    std::optional<Resumption> resumption;
    if (session.start.resumable) {
      Resumption::Terms terms = session.start.resume;
      terms.on_break = [&session] { session.adoption.client_is_lost(); };
      resumption.emplace(*session.start.resumable, 0, std::move(terms));
      session.resumption = &*resumption;
    }
    {
      const DumpServer dumps(session);
      status = session.executor.run() ? 0 : 1;
    }
    session.outbox.close();
    session.resumption = nullptr;
    resumption.reset();
    if (start.control) start.control->handle(server::ControlKind::end_session, nullptr);
    if (accept_bulk) accept_bulk(nullptr);
    session.adoption.stop();
    const Watchdog watchdog(status);
    tear_down(session);
  }
  return status;
}

}  // namespace gpupool::worker
