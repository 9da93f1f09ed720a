#include "server/worker_pool.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <thread>
#include <utility>

#include "server/log/log.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kLongestBackoff{10'000};
constexpr milliseconds kStopGrace{2'000};

// Opening a device library keeps a core busy.
unsigned most_starting_at_once() {
  return std::max(4u, std::thread::hardware_concurrency());
}

int64_t milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start).count();
}

// In a time that does not tell how much of it was right.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) ::close(std::exchange(descriptor, -1));
}

bool add_secret(const Client& client, ControlHeader& header) {
  if (!client.tls) return true;
  const auto secret = client.tls->secret();
  if (secret) header.tls_secret = *secret;
  return secret.ok();
}

}  // namespace

// The last of it: whoever counts poold's descriptors may do so now.
WorkerPool::Worker::~Worker() {
  page.reset();
  log::debug("worker_gone", {{"worker", pid}});
}

WorkerPool::WorkerPool(asio::io_context& context, Settings settings, Tenants& tenants, Refuse refuse)
    : context_(context),
      settings_(std::move(settings)),
      refuse_(std::move(refuse)),
      tenants_(tenants),
      images_(settings_.image_cache_bytes),
      turns_(context, tenants, settings_.turns),
      child_signal_(context, SIGCHLD),
      backoff_timer_(context),
      stop_timer_(context) {
  tenants.on_change([this](const Tenant& tenant) {
    if (const auto set = accounts_.set(tenant.name, tenant.quota); !set) {
      log::error("quota_not_set", {{"tenant", tenant.name}, {"reason", set.error().message}});
    }
    divide_gpus();
  });
  tenants.on_removal([this](const std::string& name) { accounts_.drop(name); });
}

WorkerPool::~WorkerPool() {
  for (auto& [pid, worker] : workers_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  for (Waiting& waiting : waiting_) close_descriptor(waiting.client.descriptor);
}

void WorkerPool::start(std::function<void(Result<void>)> first_result) {
  first_result_ = std::move(first_result);
  await_ends();
  keep_enough();
}

unsigned WorkerPool::count(Stage stage) const {
  return static_cast<unsigned>(std::count_if(
      workers_.begin(), workers_.end(), [stage](const auto& entry) { return entry.second->state == stage; }));
}

size_t WorkerPool::sessions_of(const std::string& tenant) const {
  const auto running = std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second->state == Stage::serving && entry.second->client.tenant == tenant;
  });
  const auto waiting = std::count_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) { return one.client.tenant == tenant; });
  return static_cast<size_t>(running + waiting);
}

void WorkerPool::keep_enough() {
  while (!stopping_ && !backing_off_) {
    const unsigned starting = count(Stage::starting);
    const unsigned available = starting + count(Stage::idle);
    const size_t wanted = settings_.idle_workers + waiting_.size();
    const size_t allowed = size_t{settings_.max_sessions} + settings_.idle_workers;
    if (available >= wanted || workers_.size() >= allowed || starting >= most_starting_at_once()) return;
    start_one();
  }
}

void WorkerPool::start_one() {
  auto started = start_worker(settings_.program);
  if (!started) {
    start_failed(started.error().message);
    return;
  }
  auto worker = std::make_shared<Worker>(context_, std::move(*started));
  workers_.emplace(worker->pid, worker);
  log::debug("worker_starting", {{"worker", worker->pid}});
  watch_start(worker);
}

void WorkerPool::watch_start(const std::shared_ptr<Worker>& worker) {
  worker->deadline.expires_after(settings_.start_timeout);
  worker->deadline.async_wait([this, worker](const asio::error_code& status) {
    if (status || worker->state != Stage::starting) return;
    worker->failure = "the device library took longer than " +
                      std::to_string(settings_.start_timeout.count() / 1000) + " s to start";
    ::kill(worker->pid, SIGKILL);
  });
  watch_control(worker);
}

// One message at a time, so that a worker which floods poold shares its thread with everybody else.
void WorkerPool::watch_control(const std::shared_ptr<Worker>& worker) {
  worker->control.async_wait(asio::posix::stream_descriptor::wait_read,
                             [this, worker](const asio::error_code& status) {
                               if (!status && read_control(*worker)) watch_control(worker);
                             });
}

// False when nothing more is to be read.
bool WorkerPool::read_control(Worker& worker) {
  if (!worker.failure.empty()) return false;
  const auto message = receive_control(worker.control.native_handle());
  if (!message) {
    if (message.error().code == ErrorCode::limit) return true;  // nothing there
    if (message.error().code == ErrorCode::malformed) end_worker(worker, message.error().message);
    return false;  // it has ended: reap() says how
  }
  if (worker.state == Stage::serving) return serve(worker, *message);
  if (message->descriptor >= 0) ::close(message->descriptor);
  if (worker.state == Stage::starting && message->header.kind == ControlKind::ready) {
    // It has had no client yet, so what it says can be believed.
    if (control::Devices said; devices_.empty() && said.ParseFromString(message->payload)) learn(said);
    became_ready(worker);
    return true;
  }
  worker.failure = message->header.kind == ControlKind::failed ? message->payload : "it broke the control protocol";
  if (worker.state == Stage::idle) ::kill(worker.pid, SIGKILL);
  return false;
}

// A worker runs what its client makes it run, so its messages are checked as a client's are.
bool WorkerPool::serve(Worker& worker, const ControlMessage& message) {
  const ControlHeader& header = message.header;
  if (message.payload.empty()) {
    if (header.kind == ControlKind::image_deposit) return take_image(worker, message);
    if (message.descriptor < 0 && header.kind == ControlKind::image_wanted) return give_image(worker, header);
    if (message.descriptor < 0 && header.kind == ControlKind::image_damaged && header.image_name == worker.image) {
      images_.drop_damaged(header.image_name, header.image_bytes, worker.session);
      return true;
    }
    if (message.descriptor < 0 && header.kind == ControlKind::turn) {
      turns_.look_at(worker.session);
      return true;
    }
    if (message.descriptor < 0 && settings_.host_memory_for_idle != 0 && header.gpu >= 0 &&
        static_cast<size_t>(header.gpu) < devices_.size() && static_cast<size_t>(header.gpu) < quota::kMostGpus) {
      if (header.kind == ControlKind::room_wanted) return make_room(worker, header);
      if (header.kind == ControlKind::moved_out) return moved_out(worker, header);
    }
  }
  if (message.descriptor >= 0) ::close(message.descriptor);
  return end_worker(worker, "its control message makes no sense");
}

bool WorkerPool::give_image(Worker& worker, const ControlHeader& wanted) {
  const int image = images_.find(wanted.image_name, wanted.image_bytes, worker.session);
  if (image >= 0) worker.image = wanted.image_name;
  const auto sent = send_control(worker.control.native_handle(),
                                 {.kind = image >= 0 ? ControlKind::image_found : ControlKind::image_missing,
                                  .image_bytes = wanted.image_bytes,
                                  .image_name = wanted.image_name,
                                  .image_request = wanted.image_request},
                                 "", image);
  // It asks and does not listen; one that has ended is no such case.
  if (!sent && sent.error().code == ErrorCode::limit) return end_worker(worker, sent.error().message);
  return true;
}

bool WorkerPool::take_image(Worker& worker, const ControlMessage& deposit) {
  if (deposit.descriptor < 0) return true;  // poold has too many open itself
  const auto added =
      images_.add(deposit.header.image_name, deposit.header.image_bytes, deposit.descriptor, worker.session);
  return added || end_worker(worker, added.error().message);
}

// Of a worker that has ended, so there is nobody to end for what it sent.
void WorkerPool::take_last_images(Worker& worker) {
  for (auto message = receive_control(worker.control.native_handle()); message;
       message = receive_control(worker.control.native_handle())) {
    if (message->header.kind == ControlKind::image_deposit && message->descriptor >= 0) {
      (void)images_.add(message->header.image_name, message->header.image_bytes, message->descriptor, worker.session);
    } else if (message->descriptor >= 0) {
      ::close(message->descriptor);
    }
  }
}

bool WorkerPool::end_worker(Worker& worker, const std::string& why) {
  worker.failure = why;
  log::error("worker_ended_by_poold", {{"worker", worker.pid}, {"session", worker.session}, {"reason", why}});
  ::kill(worker.pid, SIGKILL);
  return false;
}

void WorkerPool::became_ready(Worker& worker) {
  worker.deadline.cancel();
  worker.state = Stage::idle;
  log::debug("worker_ready", {{"worker", worker.pid}, {"start_ms", milliseconds_since(worker.since)}});
  worker.since = Clock::now();
  failures_in_a_row_ = 0;
  if (auto tell = std::exchange(first_result_, nullptr)) tell({});
  while (worker.state == Stage::idle && !waiting_.empty() && !stopping_) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    if (!hand_over(worker, next.client)) {
      waiting_.push_front(std::move(next));
      break;
    }
  }
  keep_enough();
}

void WorkerPool::start_failed(const std::string& why) {
  ++start_failures_;
  last_failure_ = why;
  if (auto tell = std::exchange(first_result_, nullptr)) {
    stopping_ = true;
    tell(Error{ErrorCode::unavailable, why});
    return;
  }
  const unsigned doublings = std::min(failures_in_a_row_++, 10u);
  const milliseconds pause = std::min(kFirstBackoff * (1u << doublings), kLongestBackoff);
  log::error("worker_start_failed", {{"reason", why}, {"retry_ms", pause.count()}});
  backing_off_ = true;
  backoff_timer_.expires_after(pause);
  backoff_timer_.async_wait([this](const asio::error_code& status) {
    if (status) return;
    backing_off_ = false;
    keep_enough();
  });
  if (count(Stage::starting) > 0) return;
  for (auto& waiting : std::exchange(waiting_, {})) {
    refuse_(std::move(waiting.client), {control::HelloReply::NO_DEVICE, "no worker can start: " + why});
  }
}

void WorkerPool::assign(Client client) {
  if (stopping_) {
    refuse_(std::move(client), {control::HelloReply::BUSY, "poold is shutting down"});
    return;
  }
  if (count(Stage::serving) + waiting_.size() >= settings_.max_sessions) {
    refuse_(std::move(client), {control::HelloReply::BUSY, "all " + std::to_string(settings_.max_sessions) +
                                                               " session slots are in use; try again later"});
    return;
  }
  const Tenant* const tenant = tenants_.find(client.tenant);
  if (const unsigned most = tenant ? tenant->quota.sessions : 0; most != 0 && sessions_of(client.tenant) >= most) {
    refuse_(std::move(client), {control::HelloReply::BUSY, "your tenant has its " + std::to_string(most) +
                                                               " session(s) already; try again when one has ended"});
    return;
  }
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::idle) continue;
    if (hand_over(*worker, client)) {
      keep_enough();
      return;
    }
  }
  if (backing_off_ && count(Stage::starting) == 0) {
    refuse_(std::move(client), {control::HelloReply::NO_DEVICE, "no worker can start: " + last_failure_});
    return;
  }
  Waiting waiting{std::move(client),
                  std::make_unique<asio::steady_timer>(context_, settings_.client_patience), next_ticket_++};
  waiting.patience->async_wait([this, ticket = waiting.ticket](const asio::error_code& status) {
    if (!status) give_up_waiting(ticket);
  });
  waiting_.push_back(std::move(waiting));
  keep_enough();
}

void WorkerPool::give_up_waiting(uint64_t ticket) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [ticket](const Waiting& waiting) { return waiting.ticket == ticket; });
  if (at == waiting_.end()) return;
  Client client = std::move(at->client);
  waiting_.erase(at);
  refuse_(std::move(client),
          {control::HelloReply::BUSY, "no worker became ready within " +
                                          std::to_string(settings_.client_patience.count() / 1000) +
                                          " s; try again later"});
}

void WorkerPool::attach(Client client) {
  for (const auto& [pid, worker] : workers_) {
    if (worker->state != Stage::serving || worker->session_id != client.session_id) continue;
    if (!same_secret(worker->bulk_token, client.bulk_token)) break;
    ControlHeader header{.kind = ControlKind::bulk};
    if (!add_secret(client, header)) break;
    header.from_peer = client.from_peer;
    client.transport.copy(header.transport.data(), header.transport.size() - 1);
    if (!send_control(worker->control.native_handle(), header, "", client.descriptor)) break;
    if (client.tls) client.tls->end();  // the client goes on with the worker
    close_descriptor(client.descriptor);
    log::debug("bulk_connection", {{"session", worker->session}, {"client", client.address}});
    return;
  }
  refuse_(std::move(client), {control::HelloReply::DENIED, "there is no such session to open a bulk connection for"});
}

bool WorkerPool::hand_over(Worker& worker, Client& client) {
  ControlHeader header{.kind = ControlKind::session,
                       .session_number = next_session_,
                       .dead_peer_timeout_ms = settings_.dead_peer_timeout.count(),
                       .oversubscribes = settings_.host_memory_for_idle != 0,
                       .image_bytes = images_.largest_image()};
  client.transport.copy(header.transport.data(), header.transport.size() - 1);
  const Tenant* const tenant = tenants_.find(client.tenant);
  if (!client.lease.empty() && (!tenant || tenant->gpus.empty())) {
    refuse_(std::move(client), {control::HelloReply::DENIED, "the lease has ended"});
    return true;
  }
  if (tenant && tenant->leased) {
    header.gpu_count = static_cast<uint32_t>(std::copy(tenant->gpus.begin(), tenant->gpus.end(), header.gpus.begin()) - header.gpus.begin());
  }
  if (::getrandom(header.session_id.data(), header.session_id.size(), 0) < 0 ||
      ::getrandom(header.resume_token.data(), header.resume_token.size(), 0) < 0 ||
      ::getrandom(header.bulk_token.data(), header.bulk_token.size(), 0) < 0) {
    return false;
  }
  if (!add_secret(client, header)) {
    refuse_(std::move(client), {control::HelloReply::BUSY, "the TLS connection cannot be handed over; try again"});
    return true;
  }
  auto place = accounts_.take(client.tenant);
  if (!place) {
    refuse_(std::move(client), {control::HelloReply::BUSY, place.error().message});
    return true;
  }
  divide_gpus();  // a tenant may have gone from the configuration
  const auto groups = partitions_.take(next_session_, client.tenant);
  if (!groups) {
    refuse_(std::move(client), {control::HelloReply::BUSY, groups.error().message});
    return true;
  }
  const bool has_partition = !partitions_.place(client.tenant).empty();
  worker.place = std::move(*place);
  worker.state = Stage::serving;
  worker.since = Clock::now();
  worker.started = std::chrono::system_clock::now();
  worker.session = next_session_++;
  worker.session_id.assign(header.session_id.data(), header.session_id.size());
  worker.bulk_token.assign(header.bulk_token.data(), header.bulk_token.size());
  worker.client = client;
  worker.client.descriptor = -1;
  worker.client.hello.clear();
  worker.client.tls.reset();
  // Told first: no client is served of whom the audit does not know yet.
  for (const auto& tell : session_started_) tell(view_of(worker));
  auto sent = send_control(worker.control.native_handle(),
                           {.kind = ControlKind::account, .account_slot = worker.place->slot()},
                           std::string(reinterpret_cast<const char*>(groups->data()), groups->size() * sizeof(quota::Groups)),
                           worker.place->descriptor());
  if (sent) sent = send_control(worker.control.native_handle(), header, client.hello, client.descriptor);
  if (!sent) {  // it has just died: reap() reports it
    worker.failure = "it ended while it waited for a client: " + sent.error().message;
    for (const auto& tell : session_ended_) tell(view_of(worker), worker.failure + "; the client gets another worker", false);
    worker.place.reset();
    partitions_.release(worker.session);
    worker.state = Stage::starting;
    ::kill(worker.pid, SIGKILL);
    return false;
  }
  turns_.add(worker.session, client.tenant, has_partition ? client.tenant : "", worker.page);
  if (client.tls) client.tls->end();  // the client goes on with the worker
  close_descriptor(client.descriptor);
  return true;
}

void WorkerPool::await_ends() {
  child_signal_.async_wait([this](const asio::error_code& status, int) {
    if (status) return;
    await_ends();  // first: a child that ends during reap() must not be missed
    reap();
  });
}

void WorkerPool::reap() {
  for (auto at = workers_.begin(); at != workers_.end();) {
    int wait_status = 0;
    if (::waitpid(at->first, &wait_status, WNOHANG) != at->first) {
      ++at;
      continue;
    }
    const std::shared_ptr<Worker> worker = at->second;
    at = workers_.erase(at);
    ended(*worker, wait_status);
    at = workers_.lower_bound(worker->pid);  // ended() may have started others
  }
  if (stopped_ && workers_.empty()) {
    stop_timer_.cancel();
    child_signal_.cancel();
    std::exchange(stopped_, nullptr)();
    return;
  }
  keep_enough();
}

void WorkerPool::ended(Worker& worker, int wait_status) {
  if (worker.state == Stage::starting) read_control(worker);  // its last words may not have been read yet
  worker.deadline.cancel();
  if (worker.state == Stage::serving) take_last_images(worker);
  worker.control.close();
  turns_.remove(worker.session);
  partitions_.release(worker.session);
  const std::string how = worker.ending.empty() ? end_text(wait_status) : worker.ending;
  switch (worker.state) {
    case Stage::serving: {
      const bool crashed = WIFSIGNALED(wait_status) && !stopping_ && worker.ending.empty();
      for (const auto& tell : session_ended_) tell(view_of(worker), stopping_ ? "poold is shutting down" : how, crashed);
      worker.place.reset();
      return;
    }
    case Stage::idle:
    case Stage::starting:
      if (stopping_) return;
      start_failed(worker.failure.empty() ? "a worker ended before it had a client (" + how + ")"
                                          : worker.failure);
      return;
  }
}

void WorkerPool::stop(std::function<void()> stopped) {
  stopping_ = true;
  stopped_ = std::move(stopped);
  backoff_timer_.cancel();
  turns_.stop();
  for (auto& waiting : std::exchange(waiting_, {})) {
    refuse_(std::move(waiting.client), {control::HelloReply::BUSY, "poold is shutting down"});
  }
  for (auto& [pid, worker] : workers_) {
    worker->deadline.cancel();
    worker->control.close();  // the worker sees the end of it and leaves
  }
  stop_timer_.expires_after(kStopGrace);
  stop_timer_.async_wait([this](const asio::error_code& status) {
    if (status) return;
    for (auto& [pid, worker] : workers_) {
      log::warning("worker_killed", {{"worker", pid}, {"reason", "it did not end in time"}});
      ::kill(pid, SIGKILL);
    }
  });
  asio::post(context_, [this] { reap(); });
}

}  // namespace gpupool::server
