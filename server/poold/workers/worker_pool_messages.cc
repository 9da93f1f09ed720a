// The part of WorkerPool that reads workers' messages and passes each to the part of the pool that it is for.
#include "server/poold/workers/worker_pool.h"

namespace gpupool::server {
namespace {

// Limit of messages read from an ended worker's socket, which another process may hold and write to.
constexpr int kLastMessages = 64;

}  // namespace

// Reads one message per event, so that a worker that floods its socket does not starve the others.
void WorkerPool::watch_control(const std::shared_ptr<Worker>& worker) {
  worker->control.async_wait(asio::posix::stream_descriptor::wait_read,
                             [this, worker](const asio::error_code& status) {
                               if (!status && read_control(*worker)) watch_control(worker);
                             });
}

// Returns false if nothing more may be read.
bool WorkerPool::read_control(Worker& worker) {
  if (!worker.failure.empty()) return false;
  const auto message = receive_worker_control(worker.socket());
  if (!message) {
    if (message.error().code == ErrorCode::limit) return true;  // no message
    if (message.error().code == ErrorCode::malformed) workers_.end(worker, message.error().message);
    return false;  // the worker has ended; reap() reports it
  }
  if (worker.state == Stage::serving) return handle_message(worker, *message);
  if (worker.state == Stage::starting && message->kind == ControlKind::ready) {
    // The worker has had no client yet, so its message is trusted.
    if (control::Devices said; devices_.empty() && said.ParseFromString(message->payload)) set_devices(said);
    became_ready(worker);
    return true;
  }
  worker.failure = message->kind == ControlKind::failed ? message->payload : "control protocol violation";
  if (worker.state == Stage::idle) settings_.processes.kill(worker.pid);
  return false;
}

// A worker executes a client's commands, so its messages are validated like a client's.
bool WorkerPool::handle_message(Worker& worker, const ControlMessage& message) {
  if (message.kind == ControlKind::dump) return dumps_.answered(worker, message);
  if (message.kind == ControlKind::migration_ended) return migrations_.ended(worker, message);
  if (!message.payload.empty()) return workers_.end(worker, "invalid control message");
  switch (message.kind) {
    case ControlKind::image_offered:
      return image_transfers_.offered(worker, message.body<packet::ImageQuestion>());
    case ControlKind::image_deposit: return image_transfers_.deposited(worker, message.body<packet::Image>());
    case ControlKind::image_wanted:
      return image_transfers_.wanted(worker, message.body<packet::ImageQuestion>());
    case ControlKind::image_damaged: return image_transfers_.damaged(worker, message.body<packet::Image>());
    case ControlKind::share_wanted: return shares_.ask(worker, message.body<packet::ShareWanted>());
    case ControlKind::share_found: return shares_.found(worker, message.body<packet::ShareFound>());
    case ControlKind::share_missing: return shares_.missing(worker, message.body<packet::ShareMissing>());
    case ControlKind::peer_wanted: return peers_.wanted(worker, message.body<packet::PeerWanted>());
    case ControlKind::state_changed:
      return state_changes_.changed(worker, message.body<packet::StateChanged>());
    case ControlKind::connection_broken:
      return connection_broken(worker, message.body<packet::ConnectionBroken>());
    case ControlKind::connection_resumed:
      return connection_resumed(worker, message.body<packet::ConnectionResumed>());
    case ControlKind::reclaim: return abandoned_.reclaim(worker, message.body<packet::Reclaim>());
    case ControlKind::client_leaves: worker.breaks.client_leaves = true; return true;
    case ControlKind::turn: turns_.read_page(worker.session); return true;
    case ControlKind::memory_needed: return memory_.make_room(worker, message.body<packet::MemoryNeeded>());
    case ControlKind::moved_out: return memory_.moved_out(worker, message.body<packet::MovedOut>());
    default: return workers_.end(worker, "invalid control message");
  }
}

// Reads what a worker has sent last and poold has not read before it learnt of the exit.
void WorkerPool::take_last_messages(Worker& worker) {
  for (int count = 0; count < kLastMessages && worker.failure.empty(); ++count) {
    const auto message = receive_worker_control(worker.socket());
    if (!message) return;
    const bool concerns_others =
        message->kind == ControlKind::migration_ended ||
        (message->kind == ControlKind::image_deposit && image_transfers_.awaits_deposit(worker));
    if (concerns_others) handle_message(worker, *message);
  }
}

}  // namespace gpupool::server
