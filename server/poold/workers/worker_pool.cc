#include "server/poold/workers/worker_pool.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <thread>
#include <utility>

#include "common/log/log.h"
#include "protocol/driver/cuda_header.h"
#include "server/handover/sealed_file.h"
#include "server/sockets/descriptor_closer.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kLongestBackoff{10'000};
constexpr unsigned kFailuresThatCount = 3;
constexpr milliseconds kStopGrace{2'000};
constexpr milliseconds kKillGrace{5'000};
// Limit of messages read from an ended worker's socket, which another process may hold and write to.
constexpr int kLastMessages = 64;

// Limits concurrent starts: opening a device library keeps a core busy.
unsigned most_starting_at_once() {
  // hardware_concurrency() reads a file, so call it once.
  static const unsigned most = std::max(4u, std::thread::hardware_concurrency());
  return most;
}

int64_t milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start).count();
}

// Opens the root of the NVIDIA driver's cache folders. Returns null if they are not wanted or cannot be made.
std::unique_ptr<CacheFolders> open_folders(const WorkerPool::Settings& settings) {
  if (settings.code_cache_bytes == 0 || !settings.driver_cache) return nullptr;
  auto folders = CacheFolders::open(settings.program.user);
  if (folders) return std::move(*folders);
  log::warning("no_driver_cache", {{"reason", folders.error().message},
                                   {"effect", "the driver recompiles PTX in every session"}});
  return nullptr;
}

}  // namespace

// Logs worker_gone once all descriptors of the worker are closed. Tests count poold's descriptors after that
// line.
WorkerPool::Worker::~Worker() {
  close_control();
  output->finish();
  close_without_blocking(image_space.file);
  close_without_blocking(pending_share.end);
  page.reset();
  after_closing([pid = pid] { log::debug("worker_gone", {{"worker", pid}}); });
}

void WorkerPool::Worker::close_control() {
  if (!control.is_open()) return;
  ::shutdown(control.native_handle(), SHUT_RDWR);
  close_without_blocking(control.release());
}

WorkerPool::WorkerPool(asio::io_context& context, Settings settings, Tenants& tenants, Refuse refuse)
    : context_(context),
      settings_(std::move(settings)),
      refuse_(std::move(refuse)),
      tenants_(tenants),
      images_(settings_.image_cache_bytes),
      code_(settings_.code_cache_bytes, open_folders(settings_)),
      users_(*WorkerUsers::parse(settings_.program.user)),
      turns_(context, tenants, settings_.turns),
      peers_(context, settings_.peers),
      child_signal_(context, SIGCHLD),
      backoff_timer_(context),
      stop_timer_(context) {
  // Without a random number nothing is shared: no name contains 0.
  if (::getrandom(&server_id_, sizeof server_id_, 0) != sizeof server_id_) server_id_ = 0;
  tenants.on_change([this](const Tenant& tenant) {
    if (const auto set = accounts_.set(tenant.name, tenant.quota); !set) {
      log::error("quota_not_set", {{"tenant", tenant.name}, {"reason", set.error().message}});
    }
    update_partitions();
  });
  tenants.on_removal([this](const std::string& name) { accounts_.drop(name); });
}

WorkerPool::~WorkerPool() {
  for (auto& [pid, worker] : workers_) {
    int wait_status = 0;
    settings_.processes.kill(pid);
    // A process stuck in the kernel is left for init to reap.
    settings_.processes.has_ended(pid, &wait_status);
  }
  for (const Waiting& waiting : waiting_) close_connection(waiting.client.descriptor);
}

void WorkerPool::start(std::function<void(Result<void>)> first_result) {
  first_result_ = std::move(first_result);
  watch_child_exits();
  start_missing_workers();
}

unsigned WorkerPool::count(Stage stage) const {
  return static_cast<unsigned>(std::count_if(
      workers_.begin(), workers_.end(), [stage](const auto& entry) { return entry.second->state == stage; }));
}

size_t WorkerPool::sessions_of(const std::string& tenant) const {
  const auto running = std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second->state == Stage::serving && entry.second->client.tenant == tenant;
  });
  const auto waiting = std::count_if(waiting_.begin(), waiting_.end(),
                                     [&](const Waiting& one) { return one.client.tenant == tenant; });
  return static_cast<size_t>(running + waiting);
}

void WorkerPool::start_missing_workers() {
  while (!stopping_ && !backing_off_) {
    const unsigned starting = count(Stage::starting);
    const unsigned available = starting + count(Stage::idle);
    const size_t wanted = settings_.idle_workers + waiting_.size();
    const size_t allowed = size_t{settings_.max_sessions} + settings_.idle_workers;
    if (available >= wanted || workers_.size() >= allowed || starting >= most_starting_at_once()) return;
    start_one();
  }
}

bool WorkerPool::has_own_users() const {
  return users_.one_per_worker() && ::geteuid() == 0;
}

void WorkerPool::start_one() {
  auto user = users_.reserve();
  if (!user) return start_failed(user.error().message);
  WorkerProgram program = settings_.program;
  program.user = (*user)->name;
  program.own_user = has_own_users();
  program.cache_folders = code_.folders();
  program.cache_bytes = code_.bytes_per_tenant();
  if (settings_.cgroups) {
    program.cgroup = settings_.cgroups->next_folder();
    program.cgroup_settings = settings_.cgroups->settings();
  }
  auto started = settings_.processes.start(program);
  if (!started) {
    start_failed(started.error().message);
    return;
  }
  auto worker = std::make_shared<Worker>(context_, std::move(*started));
  worker->user = std::move(*user);
  worker->cgroup = program.cgroup;
  workers_.emplace(worker->pid, worker);
  log::debug("worker_starting", {{"worker", worker->pid}});
  worker->output->watch([this, weak = std::weak_ptr(worker)](const std::string& why) {
    if (const auto self = weak.lock(); self && self->failure.empty()) end_worker(*self, why);
  });
  watch_start(worker);
}

void WorkerPool::watch_start(const std::shared_ptr<Worker>& worker) {
  worker->deadline.expires_after(settings_.start_timeout);
  worker->deadline.async_wait([this, worker](const asio::error_code& status) {
    if (status || worker->state != Stage::starting) return;
    worker->failure = "the device library took longer than " +
                      std::to_string(settings_.start_timeout.count() / 1000) + " s to start";
    settings_.processes.kill(worker->pid);
  });
  watch_control(worker);
}

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
  const auto message = receive_worker_control(worker.control.native_handle());
  if (!message) {
    if (message.error().code == ErrorCode::limit) return true;  // no message
    if (message.error().code == ErrorCode::malformed) end_worker(worker, message.error().message);
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
  if (message.kind == ControlKind::dump) return take_dump(worker, message);
  if (!message.payload.empty()) return end_worker(worker, "invalid control message");
  switch (message.kind) {
    case ControlKind::image_offered: return make_image_space(worker, message.body<packet::ImageQuestion>());
    case ControlKind::image_deposit: return accept_image(worker, message.body<packet::Image>());
    case ControlKind::image_wanted: return send_image(worker, message.body<packet::ImageQuestion>());
    case ControlKind::image_damaged: {
      const auto image = message.body<packet::Image>();
      if (image.name != worker.image) break;
      images_.drop_damaged(image.name, image.bytes, worker.session);
      return true;
    }
    case ControlKind::share_wanted: return ask_for_share(worker, message.body<packet::ShareWanted>());
    case ControlKind::share_found: return forward_share(worker, message.body<packet::ShareFound>());
    case ControlKind::share_missing:
      return forward_share_missing(worker, message.body<packet::ShareMissing>());
    case ControlKind::peer_wanted: return open_peer(worker, message.body<packet::PeerWanted>());
    case ControlKind::state_changed: return state_changed(worker, message.body<packet::StateChanged>());
    case ControlKind::turn: turns_.read_page(worker.session); return true;
    case ControlKind::memory_needed: {
      const auto wanted = message.body<packet::MemoryNeeded>();
      if (moves_memory_of(wanted.gpu)) return make_room(worker, wanted);
      break;
    }
    case ControlKind::moved_out: {
      const auto done = message.body<packet::MovedOut>();
      if (moves_memory_of(done.gpu)) return moved_out(worker, done);
      break;
    }
    default: break;
  }
  return end_worker(worker, "invalid control message");
}

bool WorkerPool::send_image(Worker& worker, const packet::ImageQuestion& wanted) {
  const int image = images_.find(wanted.name, wanted.bytes, worker.session);
  if (image >= 0) worker.image = wanted.name;
  const int socket = worker.control.native_handle();
  const auto sent = image >= 0 ? send_control<ControlKind::image_found>(socket, wanted, "", image)
                               : send_control<ControlKind::image_missing>(socket, wanted);
  // The worker does not drain its socket. A worker that has ended is handled by reap().
  if (!sent && sent.error().code == ErrorCode::limit) return end_worker(worker, sent.error().message);
  return true;
}

// A worker has one such file at a time. It delays its client's reply while it fills the file.
bool WorkerPool::make_image_space(Worker& worker, const packet::ImageQuestion& offered) {
  Worker::ImageSpace& space = worker.image_space;
  close_without_blocking(std::exchange(space.file, -1));
  if (images_.wants(offered.name, offered.bytes)) {
    const auto file = make_image_file(offered.bytes);
    if (file) space = {offered.name, offered.bytes, *file};
  }
  const int socket = worker.control.native_handle();
  const auto sent = space.file >= 0 ? send_control<ControlKind::image_space>(socket, offered, "", space.file)
                                    : send_control<ControlKind::image_unwanted>(socket, offered);
  if (!sent && sent.error().code == ErrorCode::limit) return end_worker(worker, sent.error().message);
  return true;
}

bool WorkerPool::accept_image(Worker& worker, const packet::Image& deposit) {
  Worker::ImageSpace& space = worker.image_space;
  if (space.file < 0 || deposit.name != space.name || deposit.bytes != space.bytes) {
    return end_worker(worker, "it deposited an image that it did not offer");
  }
  const auto added = images_.add(space.name, space.bytes, std::exchange(space.file, -1), worker.session);
  return added || end_worker(worker, added.error().message);
}

// Takes the image that an ended worker deposited last; at most one, for which it was given a file.
void WorkerPool::accept_last_images(Worker& worker) {
  for (int count = 0; count < kLastMessages && worker.image_space.file >= 0; ++count) {
    const auto message = receive_worker_control(worker.control.native_handle());
    if (!message) return;
    if (message->kind == ControlKind::image_deposit && !accept_image(worker, message->body<packet::Image>()))
      return;
  }
}

bool WorkerPool::end_worker(Worker& worker, const std::string& why) {
  worker.failure = why;
  if (worker.ended) {  // its PID may belong to another process by now
    log::warning("worker_sent_nonsense",
                 {{"worker", worker.pid}, {"session", worker.session}, {"reason", why}});
    return false;
  }
  log::error("worker_ended_by_poold", {{"worker", worker.pid}, {"session", worker.session}, {"reason", why}});
  settings_.processes.kill(worker.pid);
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
    if (const auto refusal = settings_.refuses()) {
      refuse_(std::move(next.client), *refusal);
      continue;
    }
    if (!hand_over(worker, next.client)) {
      waiting_.push_front(std::move(next));
      break;
    }
  }
  start_missing_workers();
}

// A single failure may be particular to one worker: refuse clients only after several in a row.
bool WorkerPool::cannot_start() const {
  return backing_off_ && failures_in_a_row_ >= kFailuresThatCount && count(Stage::starting) == 0;
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
    start_missing_workers();
  });
  if (!cannot_start()) return;
  for (auto& waiting : std::exchange(waiting_, {})) {
    refuse_(std::move(waiting.client), {control::HelloReply::NO_DEVICE, "no worker can start: " + why});
  }
}

void WorkerPool::watch_child_exits() {
  child_signal_.async_wait([this](const asio::error_code& status, int) {
    if (status) return;
    watch_child_exits();  // first: a child that ends during reap() must not be missed
    reap();
  });
}

void WorkerPool::reap() {
  for (auto at = workers_.begin(); at != workers_.end();) {
    int wait_status = 0;
    if (!settings_.processes.has_ended(at->first, &wait_status)) {
      ++at;
      continue;
    }
    const std::shared_ptr<Worker> worker = at->second;
    at = workers_.erase(at);
    worker->user->release();
    handle_exit(*worker, wait_status);
    at = workers_.lower_bound(worker->pid);  // handle_exit() may have started others
  }
  if (stopped_ && workers_.empty()) {
    stop_timer_.cancel();
    child_signal_.cancel();
    std::exchange(stopped_, nullptr)();
    return;
  }
  start_missing_workers();
}

void WorkerPool::handle_exit(Worker& worker, int wait_status) {
  worker.ended = true;
  if (worker.state == Stage::starting) read_control(worker);  // its last message may still be unread
  worker.deadline.cancel();
  if (worker.state == Stage::serving && worker.failure.empty()) accept_last_images(worker);
  worker.close_control();
  worker.output->finish();
  fail_shares_of(worker);
  if (auto answered = std::exchange(worker.checkpoint.answered, nullptr)) answered(CUDA_ERROR_INVALID_VALUE);
  end_dump(worker);
  turns_.remove(worker.session);
  peers_.drop(worker.session);
  partitions_.release(worker.session);
  const std::string end = leave_cgroup(worker, wait_status);
  const std::string how = worker.ending.empty() ? end : worker.ending;
  switch (worker.state) {
    case Stage::serving: {
      const bool crashed = WIFSIGNALED(wait_status) && !stopping_ && worker.ending.empty();
      for (const auto& tell : session_ended_)
        tell(view_of(worker), stopping_ ? "poold is shutting down" : how, crashed);
      worker.account_slot.reset();
      if (has_own_users())
        code_.session_ended(worker.client.tenant, static_cast<uid_t>(std::stoul(worker.user->name)));
      return;
    }
    case Stage::idle:
    case Stage::starting:
      if (stopping_) return;
      start_failed(worker.failure.empty() ? "a worker exited before it had a client (" + how + ")"
                                          : worker.failure);
      return;
  }
}

// Releases the worker's cgroup. Returns how the worker ended, including a kill at its memory limit.
std::string WorkerPool::leave_cgroup(Worker& worker, int wait_status) {
  if (worker.cgroup.empty()) return end_text(wait_status);
  const Cgroups::WorkerExit end = settings_.cgroups->finish_worker(worker.cgroup);
  if (end.refused_threads != 0) {
    log::warning("worker_had_no_threads",
                 {{"worker", worker.pid},
                  {"session", worker.session},
                  {"refused", end.refused_threads},
                  {"reason", "it reached its limit of threads and processes; see --worker-threads"}});
  }
  return WIFSIGNALED(wait_status) && !end.killed.empty() ? end.killed : end_text(wait_status);
}

// Gives up on workers that have been killed but do not end, because the driver keeps them in the kernel.
void WorkerPool::abandon_unkillable() {
  stop_timer_.expires_after(kKillGrace);
  stop_timer_.async_wait([this](const asio::error_code& status) {
    if (status || !stopped_) return;
    for (auto& [pid, worker] : workers_)
      log::error("worker_left_behind", {{"worker", pid}, {"reason", "it did not exit after SIGKILL"}});
    child_signal_.cancel();
    std::exchange(stopped_, nullptr)();
  });
}

void WorkerPool::stop(std::function<void()> stopped) {
  stopping_ = true;
  stopped_ = std::move(stopped);
  backoff_timer_.cancel();
  turns_.stop();
  peers_.close();
  for (auto& waiting : std::exchange(waiting_, {})) {
    refuse_(std::move(waiting.client), {control::HelloReply::BUSY, "poold is shutting down"});
  }
  for (auto& [pid, worker] : workers_) {
    worker->deadline.cancel();
    worker->dump.deadline.stop();
    worker->close_control();
  }
  stop_timer_.expires_after(kStopGrace);
  stop_timer_.async_wait([this](const asio::error_code& status) {
    if (status) return;
    for (auto& [pid, worker] : workers_) {
      log::warning("worker_killed", {{"worker", pid}, {"reason", "it did not exit in time"}});
      settings_.processes.kill(pid);
    }
    abandon_unkillable();
  });
  asio::post(context_, [this] { reap(); });
}

}  // namespace gpupool::server
