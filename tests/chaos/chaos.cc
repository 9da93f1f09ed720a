#include "tests/chaos/chaos.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "tests/e2e/pool.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {
namespace {

constexpr int kFirstScheduler = 10, kFirstGpuHost = 20, kFirstClient = 40;  // host numbers
constexpr int kClients = 2;
// Timeout for becoming idle: a flapping host is fenced for a minute, the lease of a lost client ends after 20
// s, and the machine may be busy.
constexpr std::chrono::milliseconds kRest{150'000};
constexpr int64_t kStep = 20, kLogsEvery = 250;
constexpr uint32_t kHeartbeatMs = 1'000, kHoldMs = 20'000, kNodeLostMs = 30'000, kGraceMs = 1'000;

void say(const std::string& text) {
  std::cout << text << std::endl;
}

std::string write_key(const std::string& folder) {
  const Finished made = run_to_end({program_path("pool-scheduler"), "--key", folder + "/key.pem", "--store",
                                    "sqlite:" + folder + "/pool.db", "--print-public-key"});
  if (made.status != 0) throw std::runtime_error("cannot create a key: " + made.output);
  std::ofstream(folder + "/pool.pub") << made.output;
  return folder + "/pool.pub";
}

}  // namespace

Chaos::Chaos(const ChaosOptions& options) : options_(options), random_(options.seed) {
  const std::string folder = folder_.path();
  PoolMember member{.schedulers = {},
                    .public_key = write_key(folder),
                    .token_file = folder_.write_secret("token", std::string(64, 'n') + "\n")};
  std::string url = "pool://";
  for (int i = 0; i < options_.schedulers; ++i) {
    member.schedulers.push_back(Network::address(kFirstScheduler + i) + ":9800");
    url += (i == 0 ? "" : ",") + member.schedulers.back();
  }
  if (options_.schedulers > 1)
    etcd_ = std::make_unique<EtcdCluster>(EtcdCluster::Options{
        .host = Network::address(Network::kSwitch), .launcher = {"setpriv", "--pdeathsig", "KILL"}});
  const std::string store = etcd_ ? etcd_->store("chaos") : "sqlite:" + folder + "/pool.db";
  for (int i = 0; i < options_.schedulers; ++i) {
    schedulers_.push_back(std::make_unique<SchedulerMachine>("sched-" + std::to_string(i + 1),
                                                             kFirstScheduler + i, folder,
                                                             std::vector<std::string>{"--store", store}));
  }
  for (int i = 0; i < options_.gpu_hosts; ++i)
    poolds_.push_back(std::make_unique<GpuMachine>("gpu-" + std::to_string(i + 1), kFirstGpuHost + i, folder,
                                                   member, ledger_));
  for (int i = 0; i < kClients; ++i)
    clients_.push_back(std::make_unique<Host>("client-" + std::to_string(i + 1), kFirstClient + i));
  jobs_ = std::make_unique<Jobs>(folder, url + "?insecure=1", ledger_);
  std::vector<GpuMachine*> machines;
  for (const auto& one : poolds_) machines.push_back(one.get());
  audit_ = std::make_unique<Audit>(machines);

  std::unique_ptr<pool::PoolAdmin::Stub> scheduler;
  if (!eventually([&] { return (scheduler = leader()) != nullptr; }))
    throw std::runtime_error("no scheduler became the leader:\n" + schedulers_[0]->log());
  pool::Policy policy;
  policy.set_heartbeat_ms(kHeartbeatMs);
  policy.set_hold_ms(kHoldMs);
  policy.set_node_lost_ms(kNodeLostMs);
  policy.set_grace_ms(kGraceMs);
  grpc::ClientContext context;
  pool::Policy now;
  if (const auto set = scheduler->SetPolicy(&context, policy, &now); !set.ok())
    throw std::runtime_error("cannot set the policy: " + set.error_message());
  pool::ListPoolGpusReply gpus;
  const bool all = eventually([&] {
    grpc::ClientContext call;
    return scheduler->ListGpus(&call, pool::ListGpusRequest(), &gpus).ok() &&
           gpus.gpus_size() == options_.gpu_hosts * member.gpus;
  });
  if (!all) throw std::runtime_error("the GPU hosts did not register: " + gpus.DebugString());
  for (const auto& gpu : gpus.gpus()) ledger_.gpu(gpu.uuid(), gpu.memory_bytes());
}

Chaos::~Chaos() = default;

std::unique_ptr<pool::PoolAdmin::Stub> Chaos::leader() {
  for (const auto& machine : schedulers_) {
    if (!machine->runs()) continue;
    auto stub =
        pool::PoolAdmin::NewStub(grpc::CreateChannel(machine->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTime);
    pool::PoolState state;
    if (stub->GetPool(&context, {}, &state).ok() && state.leader()) return stub;
  }
  return nullptr;
}

void Chaos::wrong(const std::string& what) {
  say("VIOLATION: " + what);
  wrong_.push_back(what);
}

// Polls processes, logs and jobs.
void Chaos::poll() {
  const auto expect_alive = [&](Daemon& daemon) {
    if (!daemon.died()) return;
    daemon.await_end();
    wrong("a daemon of " + daemon.host().name() + " has ended unexpectedly:\n" +
          daemon.log().substr(daemon.log().size() - std::min<size_t>(daemon.log().size(), 2'000)));
  };
  for (const auto& machine : schedulers_) expect_alive(*machine);
  for (const auto& machine : poolds_) expect_alive(*machine);
  const bool read = time_of_day() >= logs_read_ + kLogsEvery;
  if (read) logs_read_ = time_of_day();
  for (const auto& machine : schedulers_) {
    if (read) machine->read_log();
  }
  for (const auto& machine : poolds_) {
    if (read) machine->read_log();
    if (machine->runs() && machine->registered_at() != 0 && recovering_.erase(machine.get()) > 0)
      fault_log_.end(machine->host().name(), time_of_day());
  }
  jobs_->poll();
  if (scheduler_was_lost_) check_leases();
}

// Records the leases of undisturbed clients: the next leader must know them.
void Chaos::note_leases() {
  poll();
  for (const auto& job : jobs_->running()) {
    if (!job->lease.empty() && !job->killed && !job->may_be_preempted)
      leases_before_[job->lease] = job->number;
  }
}

void Chaos::check_leases() {
  const auto scheduler = leader();
  if (!scheduler) return;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTime);
  pool::ListLeasesReply known;
  if (!scheduler->ListLeases(&context, {}, &known).ok()) return;
  scheduler_was_lost_ = false;
  fault_log_.end(kSchedulers, time_of_day());
  for (const auto& lease : known.leases()) leases_before_.erase(lease.id());
  jobs_->poll();
  for (const auto& job : jobs_->running()) {
    const auto lost = leases_before_.find(job->lease);
    if (lost == leases_before_.end() || job->killed) continue;
    bool excused = fault_log_.affects_host(job->client->name(), job->started, time_of_day());
    for (const std::string& node : job->nodes)
      excused = excused || fault_log_.affects_host(node, job->started, time_of_day());
    if (!excused)
      wrong("the scheduler has lost lease " + job->lease + " of job " + std::to_string(job->number));
  }
  leases_before_.clear();
}

void Chaos::run_due_actions() {
  const int64_t now = time_of_day();
  std::vector<PendingAction> ripe;
  std::partition_copy(pending_.begin(), pending_.end(), std::back_inserter(ripe), pending_.begin(),
                      [&](const PendingAction& one) { return one.at <= now; });
  pending_.resize(pending_.size() - ripe.size());
  for (const PendingAction& one : ripe) one.what();
}

// Ends all pending faults at once.
void Chaos::heal() {
  while (!pending_.empty()) {
    std::vector<PendingAction> all = std::exchange(pending_, {});
    std::sort(all.begin(), all.end(),
              [](const PendingAction& a, const PendingAction& b) { return a.at < b.at; });
    for (const PendingAction& one : all) one.what();
  }
}

void Chaos::keep_busy() {
  if (static_cast<int>(jobs_->running().size()) >= options_.jobs) return;
  std::vector<const Host*> on;
  for (const auto& host : clients_) {
    if (host->is_on()) on.push_back(host.get());
  }
  const JobSpec spec = random_job(random_, driver_app());
  if (!on.empty()) jobs_->start(*on[pick(on.size())], spec);
}

// Runs the pool for `time` ms.
void Chaos::pass(int64_t time) {
  const int64_t end = time_of_day() + time;
  do {
    run_due_actions();
    poll();
    keep_busy();
    std::this_thread::sleep_for(std::chrono::milliseconds(kStep));
  } while (time_of_day() < end);
}

// Stops injecting faults and starting jobs. Waits for the running jobs to be served and to end, and checks
// that nothing is left.
void Chaos::check_idle() {
  const int64_t start = time_of_day();
  heal();
  const bool served = eventually([&] { return poll(), jobs_->running().empty() || !wrong_.empty(); }, kRest);
  if (!wrong_.empty()) return;
  for (const auto& job : jobs_->running())
    wrong("job " + std::to_string(job->number) + " (" + job->text + ") has not ended in time:\n" +
          job->process->output());
  if (!served) return;
  lease_whole_pool();
  if (!wrong_.empty()) return;
  std::vector<const Host*> clients;
  for (const auto& host : clients_) clients.push_back(host.get());
  std::unique_ptr<pool::PoolAdmin::Stub> scheduler;
  if (!eventually([&] { return (scheduler = leader()) != nullptr; }))
    return wrong("no scheduler became the leader");
  for (const std::string& one : audit_->await_idle(*scheduler, clients, kRest)) wrong("while idle: " + one);
  logs_read_ = 0;
  poll();
  if (!recovering_.empty()) wrong("a poold did not register again");
  for (const std::string& one : jobs_->judge(fault_log_)) wrong(one);
  for (const std::string& file : jobs_->left_behind()) wrong("file left behind: " + file);
  for (const std::string& one : ledger_.violations()) wrong(one);
  const Jobs::Tally& tally = jobs_->tally();
  say("idle after " + std::to_string(time_of_day() - start) + " ms: " + std::to_string(tally.right) +
      " programs succeeded, " + std::to_string(tally.excused) + " failures excused, " +
      std::to_string(tally.preempted) + " preempted, " + std::to_string(ledger_.grants()) + " grants, " +
      std::to_string(leases_moved()) + " moves, " + std::to_string(wrong_.size()) + " violations");
}

size_t Chaos::leases_moved() const {
  size_t moved = 0;
  for (const auto& machine : schedulers_) {
    for (size_t at = 0; (at = machine->log().find(" lease_moved ", at)) != std::string::npos; ++at) ++moved;
  }
  return moved;
}

// Checks that one program can lease all GPUs completely, and use nearly all of their memory.
void Chaos::lease_whole_pool() {
  JobSpec spec;
  spec.options = {"--gpus", std::to_string(options_.gpu_hosts * 2)};
  spec.program = {driver_app(), "leased_work", "1", "1", "1", "85"};
  jobs_->start(*clients_[0], spec);
  if (!eventually([&] { return poll(), jobs_->running().empty() || !wrong_.empty(); }, kRest))
    wrong("cannot lease the whole pool:\n" + jobs_->running()[0]->process->output());
}

size_t Chaos::run() {
  say("chaos: seed " + std::to_string(options_.seed) + ", " + std::to_string(options_.faults) + " faults" +
      (network_.can_disturb() ? "" : "; netem is not available, so links are not disturbed"));
  check_idle();
  for (int i = 1; i <= options_.faults && wrong_.empty(); ++i) {
    inject_one();
    pass(time_between(options_.pace_ms / 2, options_.pace_ms * 3 / 2));
    if (i % options_.quiet_every == 0 || i == options_.faults) {
      say(std::to_string(i) + " faults");
      check_idle();
    }
  }
  for (const auto& [kind, count] : injected_) say("  " + std::to_string(count) + " x " + kind);
  if (!wrong_.empty() && !options_.keep.empty()) {
    std::filesystem::create_directories(options_.keep);
    for (const auto& machine : schedulers_)
      std::ofstream(options_.keep + "/" + machine->host().name() + ".log") << machine->log();
    for (const auto& machine : poolds_)
      std::ofstream(options_.keep + "/" + machine->host().name() + ".log") << machine->log();
  }
  say(wrong_.empty() ? "no violations" : std::to_string(wrong_.size()) + " violations");
  return wrong_.size();
}

}  // namespace gpupool::testing
