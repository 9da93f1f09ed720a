#include "tests/bench/drains.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/bench/pauses.h"
#include "tests/bench/run_program.h"
#include "tests/scheduler/service/scheduler_process.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {
namespace {

using testing::Environment;
using testing::PooldProcess;
using testing::Process;
using testing::SchedulerProcess;

constexpr int kPrograms = 32, kQuickPrograms = 4;
constexpr int kDrains = 4, kQuickDrains = 2;               // in a round
constexpr const char* kBetweenLaunches = "100";            // milliseconds: the programs do not fill the GPU
constexpr const char *kCompute = "3", *kMemory = "48MiB";  // of each program; it allocates 16 MiB
constexpr double kMostSeconds = 10;  // without the time for the memory, which the link to itself hardly needs
constexpr std::chrono::seconds kDrainPatience{120};
constexpr std::chrono::milliseconds kLook{20};
const std::array<std::string, 2> kNames{"one", "two"};

std::string said(const std::vector<std::string>& words) {
  const auto done = testing::run_to_end(words);
  if (done.status != 0) throw std::runtime_error(done.output);
  return done.output;
}

// A pool of two hosts with one GPU each.
struct Hosts {
  explicit Hosts(const std::string& device)
      : poolds{PooldProcess(device, member(0), gpu(0)), PooldProcess(device, member(1), gpu(1))} {
    if (!testing::eventually([&] { return pool_admin({"health"}).find("2 open") != std::string::npos; }))
      throw std::runtime_error(pool_admin({"health"}) + scheduler.log());
  }
  std::vector<std::string> member(size_t host) const {
    return {"--peers",           "127.0.0.0/8",
            "--max-sessions",    "64",
            "--pool-name",       kNames[host],
            "--pool-scheduler",  scheduler.address(),
            "--pool-public-key", scheduler.public_key_file()};
  }
  static Environment gpu(size_t host) {
    Environment environment = device_environment();
    environment["SOFTGPU_MEMORY"] = "2GiB";
    environment["SOFTGPU_INSTANCE"] = "drains-" + kNames[host] + std::to_string(::getpid());
    return environment;
  }
  std::string pool_admin(std::vector<std::string> words) const {
    words.insert(words.begin(), {testing::program_path("pool-admin"), "--scheduler", scheduler.address()});
    return said(words);
  }
  bool is_empty(size_t host) const {
    return said({testing::program_path("pool-admin"), "--poold", "unix:" + poolds[host].admin_socket(),
                 "sessions"})
               .find("no sessions") != std::string::npos;
  }

  SchedulerProcess scheduler;
  const std::array<PooldProcess, 2> poolds;
};

}  // namespace

void Drains::round() {
  const Hosts hosts(device_);
  hosts.pool_admin({"drain", kNames[1]});
  std::vector<std::unique_ptr<Process>> programs;
  for (int i = 0; i < (quick_ ? kQuickPrograms : kPrograms); ++i) {
    programs.push_back(std::make_unique<Process>(
        std::vector<std::string>{testing::program_path("pool-run"), "--server",
                                 "pool://" + hosts.scheduler.address(), "--gpus", "1", "--compute", kCompute,
                                 "--memory", kMemory, "--", program("gpupool-bench-survive"), "pulse",
                                 kBetweenLaunches},
        Environment{{"GPUPOOL_TRANSPORT", "tcp"}}));
  }
  for (const auto& one : programs) {
    if (!one->await_output("working", kDrainPatience)) throw std::runtime_error(one->output());
  }
  for (int i = 0; i < (quick_ ? kQuickDrains : kDrains); ++i) {
    const auto from = static_cast<size_t>(i) % 2;
    hosts.pool_admin({"undrain", kNames[1 - from]});
    const auto start = PauseClock::now();
    hosts.pool_admin({"drain", kNames[from], "--move"});
    while (!hosts.is_empty(from)) {
      if (PauseClock::now() - start > kDrainPatience)
        throw std::runtime_error("a host is not empty: " + hosts.pool_admin({"leases"}));
      std::this_thread::sleep_for(kLook);
    }
    const auto end = PauseClock::now();
    seconds_.push_back(milliseconds(end - start) / 1000);
    double longest = 0;
    for (const auto& one : programs) longest = std::max(longest, longest_pause(*one, start, end));
    longest_ms_.push_back(longest);
  }
  for (const auto& one : programs) {
    one->signal(SIGTERM);
    if (one->wait(kDrainPatience) != 0)
      throw std::runtime_error(one->output() + hosts.scheduler.log() + hosts.poolds[0].log() +
                               hosts.poolds[1].log());
  }
}

void Drains::add_figures(std::vector<Figure>& all) const {
  const std::string beside = std::to_string(seconds_.size()) + " drains", tcp = "tcp";
  all.push_back({"drain_32_sessions_p50", tcp, percentile(seconds_, 50), "s", beside});
  all.push_back({"drain_32_sessions_longest",
                 tcp,
                 percentile(seconds_, 100),
                 "s",
                 beside,
                 0,
                 {Target::Kind::value_at_most, kMostSeconds}});
  all.push_back({"drain_longest_launch", tcp, percentile(longest_ms_, 50), "ms", beside});
}

}  // namespace gpupool::bench
