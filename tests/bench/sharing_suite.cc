#include "tests/bench/sharing_suite.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "common/token/token.h"
#include "tests/bench/monotonic.h"
#include "tests/bench/run_program.h"
#include "tests/support/poold_process.h"
#include "tests/support/slow_link.h"

namespace gpupool::bench {
namespace {

using testing::Environment;
using testing::PooldProcess;
using testing::Process;
using Kind = Target::Kind;
using Values = std::map<std::string, double>;

constexpr double kLead = 2.5;  // seconds for programs to start
constexpr size_t kGranule = 2u << 20, kQuotaGranules = 301;
constexpr size_t kRacers = 32;
constexpr double kBandwidth = 50;  // MB/s, the tenant's quota; any machine can reach it
const char* const kWays[] = {"plain", "ex", "cooperative", "library", "fill", "graph"};

std::string text(double value, const char* format = "%.6f") {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// A poold with one tenant per quota (lines of its configuration file), and the tenants' programs.
class Shared {
 public:
  Shared(const SharingSuite& suite, const std::vector<std::string>& quotas, Environment more = {}) {
    std::string config;
    for (const std::string& quota : quotas) {
      const auto token = make_token();
      if (!token) throw std::runtime_error(token.error().message);
      tokens_.push_back(*token);
      config += "[[tenant]]\nname = \"t" + std::to_string(tokens_.size()) + "\"\ntokens = [\"" +
                hash_text(hash_token(*token)) + "\"]\n[tenant.quota]\n" + quota + "\n";
    }
    more.merge(device_environment());
    more["SOFTGPU_INSTANCE"] = "bench-sharing";
    poold_ = std::make_unique<PooldProcess>(
        suite.device,
        std::vector<std::string>{"--config", folder_.write("poold.toml", config), "--idle-workers", "4"},
        more);
  }

  Environment of(size_t tenant) const {
    const auto url = urls_.find(tenant);
    return {{"LD_LIBRARY_PATH", prefix() / "lib" / "client"},
            {"GPUPOOL", url == urls_.end() ? poold_->url() : url->second},
            {"GPUPOOL_TRANSPORT", "tcp"},
            {"GPUPOOL_TOKEN", tokens_.at(tenant)}};
  }
  transport::Endpoint endpoint() const { return poold_->endpoint(); }
  // Makes the tenant's programs connect to `url`.
  void lead(size_t tenant, const std::string& url) { urls_[tenant] = url; }
  // Runs the programs at the same time, the i-th one for the i-th tenant, and further ones for the last
  // tenant. Returns the values that each printed.
  std::vector<Values> run(const std::vector<std::vector<std::string>>& programs) const {
    std::vector<std::unique_ptr<Process>> running;
    for (size_t i = 0; i < programs.size(); ++i) {
      running.push_back(std::make_unique<Process>(programs[i], of(std::min(i, tokens_.size() - 1))));
    }
    std::vector<Values> values(programs.size());
    for (size_t i = 0; i < programs.size(); ++i) {
      const int status = running[i]->wait(std::chrono::minutes(3));
      running[i]->await_end_of_output();
      if (status != 0)
        throw std::runtime_error(programs[i][0] + " failed (status " + std::to_string(status) + "):\n" +
                                 running[i]->output());
      std::istringstream lines(running[i]->output());
      for (std::string line, name; std::getline(lines, line);)  // skips the client's own messages
        if (double value; std::istringstream(line) >> name >> value) values[i][name] = value;
    }
    return values;
  }

 private:
  testing::TemporaryFolder folder_;
  std::vector<std::string> tokens_;
  std::map<size_t, std::string> urls_;
  std::unique_ptr<PooldProcess> poold_;
};

class SharingRun {
 public:
  explicit SharingRun(const SharingSuite& suite) : suite_(suite) {
    loops_ =
        Shared(suite, {"compute = 100"}).run({{sharer(), "calibrate", text(suite.kernel_us)}})[0].at("loops");
  }

  void round() {
    for (const Part& part : kParts) {
      if (!chosen(part.name)) continue;
      std::fprintf(stderr, "gpupool-bench: part %s\n", part.name);
      (this->*part.measure)();
    }
  }
  std::vector<Figure> figures();

 private:
  struct Part {
    const char* name;
    void (SharingRun::*measure)();
  };
  static const Part kParts[11];
  bool chosen(const std::string& part) const {
    return suite_.only.empty() ||
           std::find(suite_.only.begin(), suite_.only.end(), part) != suite_.only.end();
  }
  // Adds a sample and prints it at once, because the whole suite takes a quarter of an hour.
  void note(const std::string& name, double value) {
    std::fprintf(stderr, "gpupool-bench: %s %.6g\n", name.c_str(), value);
    samples_.add(name, value);
  }
  static std::string sharer() { return program("gpupool-bench-sharer"); }
  // Returns the command line of a program whose window starts `begin` seconds after `measurement`.
  std::vector<std::string> busy(const std::string& way, double measurement, double begin = 0,
                                double seconds = 0) const {
    return {sharer(), way, text(loops_), text(measurement + begin),
            text(seconds != 0 ? seconds : suite_.seconds)};
  }
  double alone(const Shared& shared) const {
    return shared.run({busy("plain", now() + kLead / 2)})[0].at("rate");
  }

  static std::string name_of(const std::vector<int>& weights, const std::string& way) {
    std::string name = "share";
    for (const int weight : weights) name += "_" + std::to_string(weight);
    return name + "_" + way;
  }
  void shares() {
    for (const auto& weights : settings()) {
      std::vector<std::string> quotas;
      for (const int weight : weights) quotas.push_back("compute = " + std::to_string(weight));
      const Shared shared(suite_, quotas);
      for (const char* const way : kWays) {
        const double begin = now() + kLead;
        const auto done = shared.run(std::vector(weights.size(), busy(way, begin)));
        double all = 0;
        for (const Values& one : done) all += one.at("done");
        for (size_t i = 0; i < weights.size(); ++i)
          note(name_of(weights, way) + std::to_string(i), 100 * done[i].at("done") / all);
      }
    }
  }
  std::vector<std::vector<int>> settings() const {
    if (suite_.quick) return {{10, 20, 30, 40}};
    return {{10, 90}, {25, 75}, {50, 50}, {10, 20, 30, 40}};
  }

  void hard() {
    const Shared unlimited(suite_, {"compute = 100"}), limited(suite_, {"compute = 20\nmode = \"hard\""});
    const double before = alone(unlimited), rate = alone(limited), after = alone(unlimited);
    note("hard", 100 * rate / ((before + after) / 2));
  }
  // The tenant with the smaller share uses the idle GPU alone until the tenant with the larger share starts.
  void elastic() {
    const Shared shared(suite_, {"compute = 20", "compute = 80"});
    const double before = alone(shared), begin = now() + kLead;
    const double idle = suite_.seconds / 2;
    const auto done = shared.run({busy("plain", begin, 0, idle), busy("late", begin, idle + 0.5, idle / 2)});
    const double after = alone(shared);
    note("lent", 100 * done[0].at("rate") / ((before + after) / 2));
    for (int i = 0; i < (suite_.quick ? 1 : 5); ++i) {  // starts while the smaller tenant is busy
      const double start = now() + kLead;
      note("taken_back",
           shared.run({busy("plain", start, 0, 1.5), busy("late", start, 0.7, 0.5)})[1].at("first_ms") -
               suite_.kernel_us / 1000);
    }
  }
  void two() {
    const Shared shared(suite_, {"compute = 50", "compute = 50"});
    const double before = alone(shared), begin = now() + kLead;
    const auto done = shared.run({busy("plain", begin), busy("plain", begin)});
    const double after = alone(shared);
    note("two", (done[0].at("rate") + done[1].at("rate")) / ((before + after) / 2));
  }
  // As two(), but each launch has a grid size that the worker has rarely measured.
  void shapes() {
    const Shared shared(suite_, {"compute = 50", "compute = 50"});
    const auto alone = [&] { return shared.run({busy("shapes", now() + kLead / 2)})[0].at("rate"); };
    const double before = alone(), begin = now() + kLead;
    const auto done = shared.run({busy("shapes", begin), busy("shapes", begin)});
    const double after = alone();
    note("shapes", (done[0].at("rate") + done[1].at("rate")) / ((before + after) / 2));
    note("shapes_share", 100 * done[0].at("rate") / (done[0].at("rate") + done[1].at("rate")));
  }
  // Runs kernels of many blocks on a device with two multiprocessors, whole and in two partitions.
  void partitions() {
    const Environment device{{"SOFTGPU_THREADS", "2"}};
    const std::string half = "mode = \"partition\"\ncompute = 50";
    const Shared whole(suite_, {"compute = 100"}, device), halves(suite_, {half, half}, device);
    const auto wide = [&](const Shared& shared) {
      return shared.run({busy("wide", now() + kLead / 2)})[0].at("rate");
    };
    const double before = wide(whole), alone = wide(halves), begin = now() + kLead;
    const auto done = halves.run({busy("wide", begin), busy("wide", begin)});
    const double after = wide(whole);
    note("partition_alone", 100 * alone / ((before + after) / 2));
    for (const Values& one : done) note("partition_beside", 100 * one.at("rate") / alone);
  }
  // Measures each direction with one program of a tenant with a bandwidth quota, and with two programs that
  // share it.
  void bandwidth() {
    const std::string quota = "\"" + text(kBandwidth, "%.0f") + "MB/s\"";
    const Shared shared(suite_, {"bandwidth_to_device = " + quota + "\nbandwidth_to_host = " + quota});
    for (const std::string way : {"to_device", "to_host"}) {
      for (const size_t programs : {1, 2}) {
        const double begin = now() + kLead;
        double sum = 0;
        for (const Values& one : shared.run(std::vector(programs, busy(way, begin)))) sum += one.at("MBps");
        note("bandwidth_" + way + std::to_string(programs), 100 * sum / kBandwidth);
      }
    }
  }
  void priorities() {
    const Shared shared(suite_, {"priority = \"latency-critical\"", "priority = \"best-effort\""});
    const double first = now() + kLead / 2;
    note("short_alone", shared.run({busy("short", first)})[0].at("p99_us"));
    const double begin = now() + kLead;
    const auto done = shared.run({busy("short", begin), busy("plain", begin)});
    note("short_beside", done[0].at("p99_us"));
    note("short_median", done[0].at("p50_us"));
    note("best_effort", done[1].at("rate"));
  }
  // Measures short kernels beside a program whose streams wait for a link of 100 MB/s, a host function and a
  // value.
  void stuck() {
    Shared shared(suite_, {"compute = 50", "compute = 50"}, {{"SOFTGPU_MEMORY", "1GiB"}});
    const testing::SlowLink link(shared.endpoint(), {.bytes_per_second = 100e6});
    shared.lead(1, link.url());
    const auto alone = [&] { return shared.run({busy("short", now() + kLead / 2)})[0].at("p99_us"); };
    const double before = alone(), begin = now() + kLead + 2;
    const auto done = shared.run({busy("short", begin), busy("stuck", begin)});
    note("stuck_alone", (before + alone()) / 2);
    note("stuck_beside", done[0].at("p99_us"));
    note("stuck_queued", done[1].at("queued_s"));
  }
  // Runs the same programs on a poold with accounting and on one without.
  void accounting() {
    const Shared on(suite_, {"compute = 100"}),
        off(suite_, {"compute = 100"}, {{"GPUPOOL_ACCOUNTING", "off"}});
    const std::vector<std::string> step{program("gpupool-bench-step"), suite_.quick ? "5" : "60"},
        calls{program("gpupool-bench-workload"), "calls"};
    for (int i = 0; i < (suite_.quick ? 1 : 5); ++i) {  // alternate, because the machine's speed varies
      for (const auto& [name, shared] : {std::pair{"on", &on}, std::pair{"off", &off}}) {
        note(std::string("step_") + name, shared->run({step})[0].at("step_us"));
        note(std::string("launch_") + name, shared->run({calls})[0].at("launch_total_us"));
      }
    }
  }

  // 32 programs of one tenant allocate as much memory as they can get.
  void memory() {
    // Contexts do not count against the quota here, so that the quota is a whole number of granules.
    const Shared shared(suite_, {"memory = \"" + std::to_string(kQuotaGranules * kGranule) + "\""},
                        {{"SOFTGPU_RULES", "-context_memory"}});
    for (double hold = suite_.quick ? 5 : 10; !race_for_memory(shared, hold); hold *= 2) {
      if (hold >= 40)
        throw std::runtime_error(
            "the machine is too busy: not all programs started in time for the memory race");
    }
  }
  // The programs start at the same time after `hold` seconds, and hold their memory for `hold` seconds.
  // Returns false if one was too late.
  bool race_for_memory(const Shared& shared, double hold) {
    const std::vector<std::string> racer{sharer(), "memory", text(now() + hold), text(hold)};
    double taken = 0, late = 0;
    for (const Values& one : shared.run(std::vector(kRacers, racer))) {
      taken += one.at("granules") * kGranule;
      late += one.at("late");
    }
    if (late != 0) return false;
    const double quota = kQuotaGranules * kGranule;
    note("memory_over", std::max(0.0, taken - quota));
    note("memory_left", std::max(0.0, quota - taken));
    return true;
  }

  const SharingSuite suite_;
  double loops_ = 0;
  Samples samples_;
};

const SharingRun::Part SharingRun::kParts[] = {
    {"shares", &SharingRun::shares},         {"hard", &SharingRun::hard},
    {"elastic", &SharingRun::elastic},       {"two", &SharingRun::two},
    {"shapes", &SharingRun::shapes},         {"priorities", &SharingRun::priorities},
    {"accounting", &SharingRun::accounting}, {"memory", &SharingRun::memory},
    {"partitions", &SharingRun::partitions}, {"bandwidth", &SharingRun::bandwidth},
    {"stuck", &SharingRun::stuck},
};

std::vector<Figure> SharingRun::figures() {
  std::vector<Figure> figures;
  for (const auto& weights : chosen("shares") ? settings() : std::vector<std::vector<int>>{}) {
    for (const char* const way : kWays) {
      double off = 0;
      std::string got;
      for (size_t i = 0; i < weights.size(); ++i) {
        const double percent = samples_.median(name_of(weights, way) + std::to_string(i));
        off = std::max(off, std::abs(percent - weights[i]));
        got += (i ? " : " : "") + text(percent, "%.1f");
      }
      figures.push_back({name_of(weights, way), "tcp", off, "points", got, 0, {Kind::value_at_most, 2}});
    }
  }
  if (chosen("hard")) {
    const double hard = samples_.median("hard");
    figures.push_back(
        {"hard_20_alone", "tcp", hard, "%", "relative to no limit", 0, {Kind::value_at_least, 18}});
    figures.push_back(
        {"hard_20_alone", "tcp", hard, "%", "relative to no limit", 0, {Kind::value_at_most, 20}});
  }
  if (chosen("elastic")) {
    figures.push_back(
        {"elastic_lent", "tcp", samples_.median("lent"), "%", "of one alone", 0, {Kind::value_at_least, 95}});
    figures.push_back({"elastic_taken_back",
                       "tcp",
                       samples_.median("taken_back"),
                       "ms",
                       "until its first kernel",
                       0,
                       {Kind::value_at_most, 100}});
  }
  if (chosen("two"))
    figures.push_back({"two_clients_throughput",
                       "tcp",
                       samples_.median("two"),
                       "x",
                       "of one alone",
                       0,
                       {Kind::value_at_least, 0.97}});
  if (chosen("shapes")) {
    figures.push_back(
        {"two_clients_varying_shapes", "tcp", samples_.median("shapes"), "x", "of one alone", 0});
    figures.push_back({"two_clients_varying_shapes_share", "tcp", samples_.median("shapes_share"), "%",
                       "of both, the first client's", 0});
  }
  if (chosen("partitions")) {
    figures.push_back(
        {"partition_50_alone", "tcp", samples_.median("partition_alone"), "%", "of the whole device", 0});
    figures.push_back(
        {"partition_50_beside_another", "tcp", samples_.median("partition_beside"), "%", "of it alone", 0});
  }
  if (chosen("memory")) {
    figures.push_back({"memory_over_quota_32_clients",
                       "tcp",
                       samples_.most("memory_over"),
                       "bytes",
                       "",
                       0,
                       {Kind::value_at_most, 0}});
    figures.push_back({"memory_left_unused_32_clients",
                       "tcp",
                       samples_.most("memory_left"),
                       "bytes",
                       "",
                       0,
                       {Kind::value_at_most, 0}});
  }
  for (const std::string& way :
       chosen("bandwidth") ? std::vector<std::string>{"to_device", "to_host"} : std::vector<std::string>{}) {
    for (const std::string programs : {"1", "2"}) {
      const std::string name =
          "bandwidth_" + way + "_" + programs + (programs == "1" ? "_program" : "_programs");
      const double percent = samples_.median("bandwidth_" + way + programs);
      figures.push_back({name, "tcp", percent, "%", "of the tenant's", 0, {Kind::value_at_least, 95}});
      figures.push_back({name, "tcp", percent, "%", "of the tenant's", 0, {Kind::value_at_most, 105}});
    }
  }
  if (chosen("priorities")) {
    const double alone = samples_.median("short_alone");
    figures.push_back({"latency_critical_p99",
                       "tcp",
                       samples_.median("short_beside"),
                       "us",
                       "alone",
                       alone,
                       {Kind::value_at_most, 2 * alone + suite_.kernel_us}});
    figures.push_back(
        {"latency_critical_p50", "tcp", samples_.median("short_median"), "us", "p99 alone", alone});
    figures.push_back({"best_effort_beside_it", "tcp", samples_.median("best_effort"), "kernels/s", "", 0});
  }
  if (chosen("stuck")) {
    figures.push_back({"p99_beside_stuck_streams",
                       "tcp",
                       samples_.median("stuck_beside"),
                       "us",
                       "alone",
                       samples_.median("stuck_alone"),
                       {Kind::ratio_at_most, 1.2}});
    figures.push_back(
        {"stuck_streams_filled", "tcp", samples_.median("stuck_queued"), "s", "until all was queued", 0});
  }
  if (chosen("accounting")) {
    figures.push_back({"accounting_step",
                       "tcp",
                       samples_.median("step_on"),
                       "us",
                       "without accounting",
                       samples_.median("step_off"),
                       {Kind::ratio_at_most, 1.01}});
    figures.push_back({"accounting_empty_launch",
                       "tcp",
                       samples_.median("launch_on"),
                       "us",
                       "without accounting",
                       samples_.median("launch_off"),
                       {Kind::ratio_at_most, 1.01}});
  }
  return figures;
}

}  // namespace

std::vector<Figure> measure_sharing(const SharingSuite& suite) {
  SharingRun measured(suite);
  return measure_rounds(measured, suite.rounds);
}

}  // namespace gpupool::bench
