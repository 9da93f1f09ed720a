#include "tests/bench/survive_suite.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "tests/bench/drains.h"
#include "tests/bench/moves.h"
#include "tests/bench/run_program.h"
#include "tests/bench/upgrades.h"
#include "tests/support/certificates.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {
namespace {

using testing::Authority;
using testing::Environment;
using testing::PooldProcess;
using Kind = Target::Kind;

const char* const kTransports[] = {"tcp", "tls", "shm"};

constexpr double kLongestSilenceMs = 50;
constexpr double kMostCost = 1.01;  // of numbering and keeping

// As gpupool-bench-survive names them.
const char* const kCalls[] = {"null_call",  "launch",     "h2d_4_kib",
                              "h2d_16_mib", "d2h_16_mib", "pageable_h2d_16_mib"};

class SurviveRun {
 public:
  explicit SurviveRun(const SurviveSuite& suite)
      : suite_(suite), authority_("authority"), files_(authority_.sign("server", "IP:127.0.0.1")) {}

  void round() {
    if (chosen("silence")) silence();
    if (chosen("numbering")) numbering();
    if (chosen("moves")) moves_.round();
    if (chosen("upgrades")) upgrades_.round();
    if (chosen("drains")) drains_.round();
  }
  std::vector<Figure> figures() const {
    std::vector<Figure> all;
    for (const std::string transport : kTransports) {
      if (chosen("silence")) add_silence(transport, all);
      if (chosen("numbering")) add_costs(transport, all);
    }
    if (chosen("moves")) moves_.add_figures(all);
    if (chosen("upgrades")) upgrades_.add_figures(all);
    if (chosen("drains")) drains_.add_figures(all);
    return all;
  }

 private:
  bool chosen(const std::string& part) const {
    return suite_.only.empty() ||
           std::find(suite_.only.begin(), suite_.only.end(), part) != suite_.only.end();
  }
  std::vector<std::string> options(const std::string& transport, const char* resume_timeout) const {
    std::vector<std::string> words{"--resume-timeout", resume_timeout};
    if (transport == "tls") {
      words.insert(words.end(), {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files_.certificate,
                                 "--tls-key", files_.key});
    }
    return words;
  }
  Environment through(const PooldProcess& poold, const std::string& transport) const {
    Environment environment{{"LD_LIBRARY_PATH", prefix() / "lib" / "client"},
                            {"GPUPOOL_TLS_CA", authority_.certificate()}};
    environment["GPUPOOL"] =
        (transport == "tls" ? "tls" : "tcp") + ("://127.0.0.1:" + std::to_string(poold.port()));
    environment["GPUPOOL_TRANSPORT"] = transport == "shm" ? "auto" : "tcp";
    return environment;
  }

  void silence() {
    const std::string cuts = suite_.quick ? "10" : "200";
    for (const std::string transport : kTransports) {
      const PooldProcess poold(suite_.device, options(transport, "60"), device_environment());
      Samples printed;
      run_program({program("gpupool-bench-survive"), "silence", cuts}, through(poold, transport), printed);
      for (const double time : printed.all("silence_ms")) silence_[transport].push_back(time);
    }
  }

  // The servers change places after each round, because the program's second server may be slower.
  void numbering() {
    const std::string rounds = suite_.quick ? "3" : "40";
    for (const std::string transport : kTransports) {
      const PooldProcess with(suite_.device, options(transport, "60"), device_environment()),
          without(suite_.device, options(transport, "0"), device_environment());
      Environment environment = through(swapped_ ? without : with, transport);
      environment["GPUPOOL"] += "," + through(swapped_ ? with : without, transport)["GPUPOOL"];
      Samples printed;
      run_program({program("gpupool-bench-survive"), "numbering", rounds}, environment, printed);
      for (const std::string call : kCalls) {
        with_[transport].add(call, printed.median(call + (swapped_ ? "_1" : "_0")));
        without_[transport].add(call, printed.median(call + (swapped_ ? "_0" : "_1")));
      }
    }
    swapped_ = !swapped_;
  }

  void add_silence(const std::string& transport, std::vector<Figure>& all) const {
    std::vector<double> times = silence_.at(transport);
    std::sort(times.begin(), times.end());
    const auto part = [&](size_t percent) { return times[(times.size() - 1) * percent / 100]; };
    const std::string beside = std::to_string(times.size()) + " cuts";
    all.push_back({"silence_p50", transport, part(50), "ms", beside});
    all.push_back(
        {"silence_p99", transport, part(99), "ms", beside, 0, {Kind::value_at_most, kLongestSilenceMs}});
    all.push_back({"silence_longest", transport, times.back(), "ms", beside});
  }

  void add_costs(const std::string& transport, std::vector<Figure>& all) const {
    for (const std::string call : kCalls) {
      all.push_back({"numbered_" + call,
                     transport,
                     with_.at(transport).median(call),
                     "us",
                     "--resume-timeout 0",
                     without_.at(transport).median(call),
                     {Kind::ratio_at_most, kMostCost}});
    }
  }

  const SurviveSuite suite_;
  const Authority authority_;
  const Authority::Files files_;
  Moves moves_{suite_.device, suite_.quick};
  Upgrades upgrades_{suite_.device, suite_.quick};
  Drains drains_{suite_.device, suite_.quick};
  std::map<std::string, std::vector<double>> silence_;  // by transport
  std::map<std::string, Samples> with_, without_;       // likewise
  bool swapped_ = false;
};

}  // namespace

std::vector<Figure> measure_survival(const SurviveSuite& suite) {
  SurviveRun measured(suite);
  return measure_rounds(measured, suite.rounds);
}

}  // namespace gpupool::bench
