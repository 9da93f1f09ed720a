#include "tests/bench/upgrades.h"

#include <signal.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/bench/pauses.h"
#include "tests/bench/run_program.h"
#include "tests/support/installed_poold.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {
namespace {

using testing::PooldProcess;
using testing::Process;

constexpr int kUpgradedPrograms = 32, kUpgrades = 50;  // in a round
constexpr int kQuickUpgradedPrograms = 4, kQuickUpgrades = 3;
constexpr double kLongestLaunchMs = 100;
constexpr const char* kBetweenPulses = "50";  // milliseconds: the programs do not fill the GPU
constexpr std::chrono::seconds kUpgradePatience{120};

void upgrade(testing::InstalledPoold& installed, const PooldProcess& poold) {
  installed.install();
  const auto done = testing::run_to_end(
      {testing::program_path("pool-admin"), "--poold", "unix:" + poold.admin_socket(), "upgrade"});
  if (done.status != 0) throw std::runtime_error(done.output + poold.log());
}

}  // namespace

void Upgrades::round() {
  testing::InstalledPoold installed;
  PooldProcess poold(device_, {"--max-sessions", "64"}, device_environment(), installed.launcher());
  std::vector<std::unique_ptr<Process>> programs;
  for (int i = 0; i < (quick_ ? kQuickUpgradedPrograms : kUpgradedPrograms); ++i) {
    programs.push_back(std::make_unique<Process>(
        std::vector{program("gpupool-bench-survive"), std::string("pulse"), std::string(kBetweenPulses)},
        testing::Environment{{"LD_LIBRARY_PATH", prefix() / "lib" / "client"}, {"GPUPOOL", poold.url()}}));
  }
  for (const auto& one : programs) {
    if (!one->await_output("working", kUpgradePatience)) throw std::runtime_error(one->output());
  }
  const auto longest = [&](PauseClock::time_point from, PauseClock::time_point to) {
    double time = 0;
    for (const auto& one : programs) time = std::max(time, longest_pause(*one, from, to));
    return time;
  };
  for (int i = 0; i < (quick_ ? kQuickUpgrades : kUpgrades); ++i) {
    const auto start = PauseClock::now();
    upgrade(installed, poold);
    const auto end = PauseClock::now();
    std::this_thread::sleep_for(end - start);  // as long again, without an upgrade
    const auto then = PauseClock::now();
    longest_ms_.push_back(longest(start, end));
    usual_ms_.push_back(longest(end, then));
    whole_ms_.push_back(milliseconds(end - start));
  }
  for (const auto& one : programs) {
    one->signal(SIGTERM);
    if (one->wait(kUpgradePatience) != 0) throw std::runtime_error(one->output() + poold.log());
  }
}

void Upgrades::add_figures(std::vector<Figure>& all) const {
  const std::string beside = std::to_string(whole_ms_.size()) + " upgrades", tcp = "auto";
  all.push_back({"upgrade_longest_launch_p50", tcp, percentile(longest_ms_, 50), "ms", "no upgrade",
                 percentile(usual_ms_, 50)});
  all.push_back({"upgrade_longest_launch",
                 tcp,
                 percentile(longest_ms_, 100),
                 "ms",
                 "no upgrade",
                 percentile(usual_ms_, 100),
                 {Target::Kind::value_at_most, kLongestLaunchMs}});
  all.push_back({"upgrade_whole", tcp, percentile(whole_ms_, 50), "ms", beside});
}

}  // namespace gpupool::bench
