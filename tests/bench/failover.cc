#include "tests/bench/failover.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <thread>

#include "client/lease_client/lease_client.h"
#include "protocol/control/pool_admin.grpc.pb.h"
#include "tests/bench/run_program.h"
#include "tests/scheduler/service/clients.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/etcd.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {
namespace {

using namespace gpupool::testing;
using namespace std::chrono_literals;
using Kind = Target::Kind;

constexpr size_t kSchedulers = 3;
constexpr uint32_t kWhole = 1000;
constexpr auto kWorst = 60s;  // timeout of a failover

class Cluster {
 public:
  explicit Cluster(const FailoverSuite& suite) {
    for (size_t i = 0; i < kSchedulers; ++i) {
      schedulers_.push_back(SchedulerProcess::one_of_several(etcd_.store(), folder_.path() / "key.pem"));
    }
    if (!eventually([&] { return leader().has_value(); }))
      throw std::runtime_error("no scheduler became the leader:\n" + schedulers_[0]->log());
    const std::string token = folder_.write_secret("token", std::string(64, 'n') + "\n");
    for (int i = 0; i < suite.poolds; ++i) {
      Environment device = device_environment();
      device.insert({{"SOFTGPU_INSTANCE", "failover-" + std::to_string(::getpid()) + "-" + std::to_string(i)},
                     {"SOFTGPU_DEVICES", std::to_string(suite.gpus)},
                     {"SOFTGPU_MEMORY", "256MiB"}});
      poolds_.push_back(std::make_unique<PooldProcess>(
          "softgpu",
          std::vector<std::string>{"--pool-scheduler", addresses(), "--pool-name", "n" + std::to_string(i),
                                   "--pool-token-file", token, "--pool-public-key",
                                   schedulers_[0]->public_key_file(), "--pool-insecure"},
          device));
    }
    const std::string all = std::to_string(suite.poolds) + " open";
    if (!eventually([&] { return pool_admin({"health"}).find(all) != std::string::npos; }))
      throw std::runtime_error("not all poolds registered:\n" + pool_admin({"health"}));
  }
  ~Cluster() {
    for (const auto& poold : poolds_) poold->stop();
  }

  std::string addresses() const {
    std::string out;
    for (const auto& scheduler : schedulers_) out += (out.empty() ? "" : ",") + scheduler->address();
    return out;
  }
  SchedulerProcess& scheduler(size_t i) { return *schedulers_[i]; }
  const std::vector<std::unique_ptr<PooldProcess>>& poolds() const { return poolds_; }
  std::string pool_admin(std::vector<std::string> words) const {
    words.insert(words.begin(), {program("pool-admin"), "--scheduler", addresses()});
    return run_to_end(words).output;
  }
  // Returns the scheduler that answers as the leader, ignoring `dead`.
  std::optional<size_t> leader(size_t dead = kSchedulers) const {
    for (size_t i = 0; i < schedulers_.size(); ++i) {
      if (i == dead) continue;
      const auto stub = pool::PoolAdmin::NewStub(connect(schedulers_[i]->address()));
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + 500ms);
      pool::PoolState state;
      if (stub->GetPool(&context, pool::GetPoolRequest(), &state).ok() && state.leader()) return i;
    }
    return std::nullopt;
  }

 private:
  TemporaryFolder folder_;
  EtcdCluster etcd_{{.on_disk = true}};
  std::vector<std::unique_ptr<SchedulerProcess>> schedulers_;
  std::vector<std::unique_ptr<PooldProcess>> poolds_;
};

class Faults {
 public:
  void add(std::atomic<int>& kind, const std::string& what) {
    ++kind;
    std::fprintf(stderr, "gpupool-bench: FAULT: %s\n", what.c_str());
  }
  std::atomic<int> lost{0}, double_grants{0}, errors{0};
};

// Lease clients in threads, with the implementation of pool-lease (client/lease_client).
class LeaseHolders {
 public:
  LeaseHolders(const Cluster& cluster, Faults& faults)
      : faults_(faults), address_("pool://" + cluster.addresses()) {}
  ~LeaseHolders() { end(); }

  // Adds a client that holds one lease after the other for up to `longest` each; with zero, one lease until
  // the end.
  void add(unsigned seed, std::chrono::milliseconds longest) {
    threads_.emplace_back([this, seed, longest] {
      std::minstd_rand random(seed);
      while (!ended_) take_one(random, longest);
    });
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  uint64_t grants() const { return grants_; }
  const Usage& usage() const { return usage_; }
  // Waits until more than `more_than` leases have been granted. Returns false after kWorst.
  bool await_grant(uint64_t more_than) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kWorst, [&] { return grants_ > more_than; });
  }

 private:
  void take_one(std::minstd_rand& random, std::chrono::milliseconds longest) {
    static constexpr uint32_t kShares[] = {100, 300, 500, 1000};
    auto address = pool::parse_pool_address(address_ + "?memory=8MiB");
    if (!address) throw std::runtime_error(address.error().message);
    const bool stays = longest == 0ms;
    address->request.set_gpus(!stays && random() % 8 == 0 ? 2 : 1);
    address->request.set_compute_milli(stays ? 100 : kShares[random() % 4]);
    const auto time = stays ? std::chrono::hours(24)
                            : std::chrono::milliseconds(random() % static_cast<unsigned>(longest.count()));

    pool::Granted granted;
    bool has = false, over = false;
    lease_client::LeaseClient client(
        {std::move(*address), "", {}, 30s},
        [&](const pool::Granted& grant) -> Result<void> {
          const std::lock_guard lock(mutex_);
          if (has && grant.lease() != granted.lease())
            faults_.add(faults_.lost, "a client received a different lease");
          if (!has) ++grants_;
          has = true;
          granted = grant;
          usage_.granted(grant);
          changed_.notify_all();
          return {};
        },
        [](const std::string&) {});
    // Record the end of the usage before the lease is released.
    std::thread ender([&] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return has || over || ended_; });
      if (has) changed_.wait_for(lock, time, [&] { return over || ended_; });
      for (const auto& server : granted.servers()) usage_.ended(server.node(), granted.lease());
      lock.unlock();
      client.stop();
    });
    const Result<void> result = client.run();
    {
      const std::lock_guard lock(mutex_);
      over = true;
    }
    changed_.notify_all();
    ender.join();
    if (!result)
      faults_.add(faults_.lost, "a client lost its lease or received none: " + result.error().message);
  }

  Faults& faults_;
  const std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> ended_ = false;
  std::atomic<uint64_t> grants_ = 0;
  Usage usage_;
  std::vector<std::thread> threads_;
};

// Programs on leases: some run all the time, and short ones one after the other.
class Programs {
 public:
  Programs(const Cluster& cluster, Faults& faults, int count) : cluster_(cluster), faults_(faults) {
    for (int i = 0; i < count; ++i)
      running_.push_back(std::make_unique<Process>(words("short", "1e9"), environment()));
    visitors_ = std::thread([this] {
      while (!ended_) {
        Process visitor(words("plain", "0.2"), environment());
        if (const int status = visitor.wait(2 * kWorst); status != 0) {
          visitor.await_end_of_output(1s);
          faults_.add(faults_.errors, "a short program failed with status " + std::to_string(status) + ": " +
                                          visitor.output());
        }
        ++visits_;
      }
    });
  }
  ~Programs() { end(); }

  void check() {
    for (auto& program : running_) {
      if (!program || !is_zombie(program->pid())) continue;
      faults_.add(faults_.errors, "a running program ended: " + program->output());
      program.reset();
    }
  }
  void end() {
    ended_ = true;
    if (visitors_.joinable()) visitors_.join();
    check();
    running_.clear();
  }
  int visits() const { return visits_; }

 private:
  static Environment environment() {
    return {{"LD_LIBRARY_PATH", prefix() / "lib" / "client"}, {"GPUPOOL_TRANSPORT", "tcp"}};
  }
  // `way` short: a kernel every 10 ms, synchronously; plain: kernels without pauses.
  std::vector<std::string> words(const std::string& way, const std::string& seconds) const {
    const double now =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    return {program("pool-run"),
            "--server",
            "pool://" + cluster_.addresses(),
            "--gpus",
            "1",
            "--compute",
            "60",
            "--memory",
            "32MiB",
            "--",
            program("gpupool-bench-sharer"),
            way,
            "100",
            std::to_string(now),
            seconds};
  }

  const Cluster& cluster_;
  Faults& faults_;
  std::vector<std::unique_ptr<Process>> running_;
  std::atomic<bool> ended_ = false;
  std::atomic<int> visits_ = 0;
  std::thread visitors_;
};

uint32_t percent_to_milli(const nlohmann::json& percent) {
  return static_cast<uint32_t>(std::lround(percent.get<double>() * 10));
}

// Sums up, per GPU, the shares of all leases with sessions that the poolds report, and records sums above one
// GPU.
void look_at_poolds(const Cluster& cluster, Faults& faults, uint64_t& looks) {
  for (const auto& poold : cluster.poolds()) {
    const Finished asked =
        run_to_end({program("pool-admin"), "--poold", "unix:" + poold->admin_socket(), "--json", "tenants"});
    std::map<int, uint32_t> milli;
    try {
      for (const auto& tenant : nlohmann::json::parse(asked.output)) {
        if (tenant.at("sessions") == 0 || std::string(tenant.at("name")).find('/') == std::string::npos)
          continue;
        const auto& quota = tenant.at("quota");
        for (const auto& gpu : quota.at("gpus"))
          milli[gpu.at("gpu")] += percent_to_milli(gpu.at("compute_percent"));
        if (quota.at("gpus").empty()) {
          for (const int gpu : tenant.at("gpus")) milli[gpu] += percent_to_milli(quota.at("compute_percent"));
        }
        ++looks;
      }
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(std::string(error.what()) + " in the output of pool-admin: " + asked.output);
    }
    for (const auto& [gpu, sum] : milli) {
      if (sum > kWhole)
        faults.add(faults.double_grants, "a poold serves " + std::to_string(sum) + " thousandths of GPU " +
                                             std::to_string(gpu) + ":\n" + asked.output);
    }
  }
}

}  // namespace

std::vector<Figure> measure_failover(const FailoverSuite& suite) {
  Cluster cluster(suite);
  Faults faults;
  Programs programs(cluster, faults, suite.programs);
  LeaseHolders holders(cluster, faults);
  for (int i = 0; i < suite.long_lived; ++i) holders.add(1000u + static_cast<unsigned>(i), 0ms);
  for (int i = 0; i < suite.holders; ++i) holders.add(static_cast<unsigned>(i) + 1, 1500ms);
  if (!holders.await_grant(2 * static_cast<uint64_t>(suite.holders)))
    throw std::runtime_error("no leases are granted");

  Samples samples;
  std::minstd_rand random(1);
  uint64_t looks = 0;
  for (int kill = 0; kill < suite.kills; ++kill) {
    std::optional<size_t> leads;  // on a busy machine the leader may also change in between
    if (!eventually([&] { return (leads = cluster.leader()).has_value(); }))
      throw std::runtime_error("no scheduler is the leader");
    const auto start = std::chrono::steady_clock::now();
    const auto since = [&] {
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    };
    cluster.scheduler(*leads).kill();
    std::optional<size_t> next;
    while (!(next = cluster.leader(*leads)) && since() < 60e3) std::this_thread::sleep_for(10ms);
    if (!next) throw std::runtime_error("no other scheduler became the leader within a minute");
    const double leader_after = since();
    samples.add("leader", leader_after);
    if (!holders.await_grant(holders.grants()))
      throw std::runtime_error("the new leader grants nothing within a minute");
    samples.add("grant", since());
    cluster.scheduler(*leads).start();
    look_at_poolds(cluster, faults, looks);
    programs.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1000));
    std::fprintf(stderr, "gpupool-bench: kill %d of %d: leader after %.0f ms, %llu leases so far\n", kill + 1,
                 suite.kills, leader_after, static_cast<unsigned long long>(holders.grants()));
  }
  for (const std::string& gpu : holders.usage().double_grants())
    faults.add(faults.double_grants, "double grant of GPU " + gpu);
  if (looks == 0) throw std::runtime_error("the poolds had no sessions");
  programs.end();
  holders.end();
  if (!eventually([&] { return cluster.pool_admin({"leases"}).find("no leases") != std::string::npos; })) {
    throw std::runtime_error("leases remain after all clients have ended:\n" +
                             cluster.pool_admin({"leases"}));
  }
  const std::string beside = std::to_string(suite.kills) + " kills";
  const auto none = [&](const char* name, int count) {
    return Figure{name, "grpc", static_cast<double>(count), "", beside, 0, {Kind::equal, 0}};
  };
  return {
      {"failover_leader_p50", "grpc", samples.median("leader"), "ms", beside, 0},
      {"failover_leader_most", "grpc", samples.most("leader"), "ms", beside, 0, {Kind::value_at_most, 5000}},
      {"failover_grant_p50", "grpc", samples.median("grant"), "ms", beside, 0},
      {"failover_grant_most", "grpc", samples.most("grant"), "ms", beside, 0},
      {"failover_leases", "grpc", static_cast<double>(holders.grants()), "", beside, 0},
      {"failover_programs", "grpc", static_cast<double>(suite.programs + programs.visits()), "", beside, 0},
      none("failover_leases_lost", faults.lost),
      none("failover_double_grants", faults.double_grants),
      none("failover_program_errors", faults.errors)};
}

}  // namespace gpupool::bench
