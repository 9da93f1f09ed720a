#include "server/poold/workers/worker_pool.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <thread>
#include <utility>

#include "common/log/log.h"
#include "common/text/gpu_uuid.h"
#include "server/poold/workers/time_since.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kLongestBackoff{10'000};
constexpr unsigned kFailuresThatCount = 3;
constexpr milliseconds kStopGrace{2'000};
constexpr milliseconds kKillGrace{5'000};

// Limits concurrent starts: opening a device library keeps a core busy.
unsigned most_starting_at_once() {
  // hardware_concurrency() reads a file, so call it once.
  static const unsigned most = std::max(4u, std::thread::hardware_concurrency());
  return most;
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

WorkerPool::WorkerPool(asio::io_context& context, Settings settings, Tenants& tenants, Refuse refuse)
    : context_(context),
      settings_(std::move(settings)),
      refuse_(std::move(refuse)),
      tenants_(tenants),
      images_(settings_.image_cache_bytes),
      code_(settings_.code_cache_bytes, open_folders(settings_)),
      users_(*WorkerUsers::parse(settings_.program.user)),
      turns_(context, tenants, settings_.turns),
      workers_(settings_.processes),
      partitions_(tenants),
      image_transfers_(workers_, images_),
      shares_(workers_),
      peers_(context, workers_, settings_.peers),
      memory_(workers_, tenants, devices_, settings_.host_memory_for_idle),
      state_changes_(workers_, devices_, settings_.host_memory_for_checkpoints),
      dumps_(context, workers_, [this](const Worker& worker) { return view_of(worker); }),
      migrations_(workers_),
      suspensions_(context, workers_, migrations_, {settings_.suspended, settings_.resume_timeout},
                   {.assign = [this](Client client) { assign(std::move(client)); },
                    .refuse = refuse_,
                    .end_session =
                        [this](uint64_t session, const std::string& reason) {
                          (void)end_serving(session, reason, log::Level::info);
                        },
                    .new_number = [this] { return next_session_++; }}),
      abandoned_(context, workers_,
                 [this](uint64_t session, const std::string& reason) {
                   (void)end_session(session, reason, log::Level::info);
                 }),
      waiting_(
          context, settings_.client_patience,
          [this](const Client& client, const auto& place) { return !no_slot_for(client.tenant, place); },
          [this](Client client) { give_up_waiting(std::move(client)); }),
      child_signal_(context, SIGCHLD),
      backoff_timer_(context),
      stop_timer_(context) {
  // Without a random number nothing is shared: no name contains 0.
  if (::getrandom(&server_id_, sizeof server_id_, 0) != sizeof server_id_) server_id_ = 0;
  tenants.on_change([this](const Tenant& tenant) {
    if (const auto set = accounts_.set(tenant.name, tenant.quota); !set) {
      log::error("quota_not_set", {{"tenant", tenant.name}, {"reason", set.error().message}});
    }
    partitions_.update();
  });
  tenants.on_removal([this](const std::string& name) { accounts_.drop(name); });
}

WorkerPool::~WorkerPool() {
  for (auto& [pid, worker] : workers_.all()) {
    int wait_status = 0;
    settings_.processes.kill(pid);
    // A process stuck in the kernel is left for init to reap.
    settings_.processes.has_ended(pid, &wait_status);
  }
}

void WorkerPool::start(std::function<void(Result<void>)> first_result) {
  first_result_ = std::move(first_result);
  watch_child_exits();
  suspensions_.start();
  start_missing_workers();
}

size_t WorkerPool::sessions_of(const std::string& tenant) const {
  size_t running = 0;
  workers_.for_each_serving([&](const Worker& worker) { running += worker.client.tenant == tenant; });
  return running + waiting_.count(tenant);
}

void WorkerPool::start_missing_workers() {
  while (!stopping_ && !paused_ && !backing_off_) {
    const unsigned starting = workers_.count(Stage::starting);
    const unsigned available = starting + workers_.count(Stage::idle);
    const size_t wanted = settings_.idle_workers + waiting_.count([this](const Client& client) {
      return has_slot_for(client.tenant);
    });
    const size_t allowed = size_t{settings_.max_sessions} + settings_.idle_workers;
    if (available >= wanted || workers_.all().size() >= allowed || starting >= most_starting_at_once())
      return;
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
  workers_.all().emplace(worker->pid, worker);
  log::debug("worker_starting", {{"worker", worker->pid}});
  watch_output(worker);
  watch_start(worker);
}

void WorkerPool::watch_output(const std::shared_ptr<Worker>& worker) {
  worker->output->watch([this, weak = std::weak_ptr(worker)](const std::string& why) {
    if (const auto self = weak.lock(); self && self->failure.empty()) workers_.end(*self, why);
  });
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

void WorkerPool::set_devices(const control::Devices& devices) {
  devices_.assign(devices.devices().begin(), devices.devices().end());
  driver_version_ = devices.driver_version();
  partitions_.set_devices(devices_);
  std::vector<std::string> uuids;
  for (const control::Device& device : devices_) uuids.push_back(gpu_uuid_text(device.uuid()));
  tenants_.set_gpu_uuids(std::move(uuids));
}

void WorkerPool::became_ready(Worker& worker) {
  worker.deadline.cancel();
  worker.state = Stage::idle;
  log::debug("worker_ready", {{"worker", worker.pid}, {"start_ms", time_since(worker.since).count()}});
  worker.since = Clock::now();
  failures_in_a_row_ = 0;
  if (auto tell = std::exchange(first_result_, nullptr)) tell({});
  serve_waiting();
  start_missing_workers();
}

// A single failure may be particular to one worker: refuse clients only after several in a row.
bool WorkerPool::cannot_start() const {
  return backing_off_ && failures_in_a_row_ >= kFailuresThatCount && workers_.count(Stage::starting) == 0;
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
  refuse_unserved(waiting_.take_all(), control::HelloReply::NO_DEVICE, "no worker can start: " + why);
}

void WorkerPool::watch_child_exits() {
  child_signal_.async_wait([this](const asio::error_code& status, int) {
    if (status) return;
    watch_child_exits();  // first: a child that ends during reap() must not be missed
    reap();
  });
}

void WorkerPool::reap() {
  Workers::ByPid& workers = workers_.all();
  for (auto at = workers.begin(); at != workers.end();) {
    int wait_status = 0;
    if (!settings_.processes.has_ended(at->first, &wait_status)) {
      ++at;
      continue;
    }
    const std::shared_ptr<Worker> worker = at->second;
    at = workers.erase(at);
    worker->user->release();
    handle_exit(*worker, wait_status);
    serve_waiting();
    at = workers.lower_bound(worker->pid);  // handle_exit() may have started others
  }
  if (stopped_ && workers.empty()) {
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
  if (worker.state == Stage::serving && worker.failure.empty()) take_last_messages(worker);
  worker.close_control();
  worker.output->finish();
  shares_.session_ended(worker);
  state_changes_.worker_exited(worker);
  dumps_.session_ended(worker);
  turns_.remove(worker.session);
  peers_.session_ended(worker);
  partitions_.release(worker.session);
  const std::string end = leave_cgroup(worker, wait_status);
  const bool orderly = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kWorkerOrderly;
  const std::string how = stopping_                             ? "poold is shutting down"
                          : !worker.ending.empty()              ? worker.ending
                          : orderly && !worker.migrated.empty() ? worker.migrated
                                                                : end;
  if (worker.state == Stage::serving) {
    const bool crashed = WIFSIGNALED(wait_status) && !stopping_ && worker.ending.empty();
    migrations_.session_ended(worker, how);
    suspensions_.session_ended(worker);
    session_ended(worker, how, crashed);
  } else if (!stopping_ && !paused_) {
    start_failed(worker.failure.empty() ? "a worker exited before it had a client (" + how + ")"
                                        : worker.failure);
  }
  image_transfers_.session_ended(worker);
  memory_.session_ended(worker);
  state_changes_.session_ended(worker);
  abandoned_.session_ended(worker);
}

void WorkerPool::session_ended(Worker& worker, const std::string& how, bool crashed) {
  for (const auto& tell : session_ended_) tell(view_of(worker), how, crashed);
  if (crashed || !worker.ending.empty()) remember_reason(worker, how);
  worker.account_slot.reset();
  if (const auto user = worker.user->own_id(); user && has_own_users())
    code_.session_ended(worker.client.tenant, *user);
}

// Releases the worker's cgroup. Returns how the worker ended, including a kill at its memory limit.
std::string WorkerPool::leave_cgroup(Worker& worker, int wait_status) {
  if (worker.cgroup.empty() || !settings_.cgroups) return end_text(wait_status);
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
    for (auto& [pid, worker] : workers_.all())
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
  dumps_.stop();
  abandoned_.stop();
  suspensions_.stop();
  refuse_unserved(waiting_.take_all(), control::HelloReply::BUSY, "poold is shutting down");
  for (auto& [pid, worker] : workers_.all()) {
    worker->deadline.cancel();
    worker->close_control();
  }
  stop_timer_.expires_after(kStopGrace);
  stop_timer_.async_wait([this](const asio::error_code& status) {
    if (status) return;
    for (auto& [pid, worker] : workers_.all()) {
      log::warning("worker_killed", {{"worker", pid}, {"reason", "it did not exit in time"}});
      settings_.processes.kill(pid);
    }
    abandon_unkillable();
  });
  asio::post(context_, [this] { reap(); });
}

}  // namespace gpupool::server
