#include "tests/bench/attacks_suite.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "tests/bench/attacked_poold.h"
#include "tests/bench/monotonic.h"
#include "tests/bench/run_program.h"
#include "tests/support/raw_client.h"

namespace gpupool::bench {
namespace {

using testing::RawClient;
using Kind = Target::Kind;

constexpr double kAttacksLead = 2.5;  // seconds for programs to start
constexpr double kMib = 1 << 20;
constexpr double kKernelUs = 1000;

// The attacks, run at the same time, each from its own address. The flood's rate is the one for which the
// target of `served` is defined. checkpoint_questions use all connections that a tenant may have, at a higher
// rate than poold answers. The others make up to some hundred attempts per second.
const std::vector<Attack> kAttacks{
    {"flood", 2000},       {"one_byte_at_a_time", 1000},   {"malformed", 200},
    {"wrong_tokens", 200}, {"checkpoint_questions", 6400}, {"lingering_sockets", 10},
};

// Returns the number of refused attempts in the log, including those in its summary lines.
double told(const std::string& log) {
  const std::string sum = "\"event\":\"clients_refused_unlogged\"", count = "\"count\":";
  auto attempts = static_cast<double>(testing::occurrences(log, "\"event\":\"client_refused\""));
  for (size_t at = log.find(sum); at != std::string::npos; at = log.find(sum, at + 1))
    attempts += std::stod(log.substr(log.find(count, at) + count.size()));
  return attempts;
}

class AttacksRun {
 public:
  explicit AttacksRun(const AttacksSuite& suite) : suite_(suite) {}

  void round() {
    for (const Part& part : kParts) {
      if (!chosen(part.name)) continue;
      std::fprintf(stderr, "gpupool-bench: part %s\n", part.name);
      (this->*part.measure)();
    }
  }
  std::vector<Figure> figures() const;

 private:
  struct Part {
    const char* name;
    void (AttacksRun::*measure)();
  };
  static const Part kParts[4];

  bool chosen(const std::string& part) const {
    return suite_.only.empty() ||
           std::find(suite_.only.begin(), suite_.only.end(), part) != suite_.only.end();
  }
  void note(const std::string& name, double value) {
    std::fprintf(stderr, "gpupool-bench: %s %.6g\n", name.c_str(), value);
    samples_.add(name, value);
  }

  // Measures a well-behaved program and /healthz without attackers, with attackers of another listener, and
  // with attackers of poold.
  void answers() {
    const AttackedPoold attacked(suite_.device);
    const ClosingListener listener;
    Samples calibration;
    run_program({program("gpupool-bench-sharer"), "calibrate", std::to_string(kKernelUs)},
                attacked.good_program(), calibration);
    const std::string loops = std::to_string(calibration.median("loops"));
    answers_beside("alone", attacked, loops, {}, 0);
    answers_beside("elsewhere", attacked, loops, kAttacks, listener.port());
    answers_beside("attacked", attacked, loops, kAttacks, attacked.poold().port());
  }
  void answers_beside(const std::string& beside, const AttackedPoold& attacked, const std::string& loops,
                      const std::vector<Attack>& attacks, uint16_t port) {
    const double begin = now() + kAttacksLead;
    Attackers attackers(attacks, port, begin + suite_.seconds, attacked.hostile_token());
    HealthChecks health(attacked.page(), begin);
    Samples program_samples;
    run_program({program("gpupool-bench-sharer"), "short", loops, std::to_string(begin),
                 std::to_string(suite_.seconds)},
                attacked.good_program(), program_samples);
    const std::vector<double> times = health.finish();
    note("attempts_" + beside, attackers.finish());
    note("launch_p99_" + beside, program_samples.median("p99_us"));
    note("healthz_p99_" + beside, percentile_99(times));
    note("healthz_most_" + beside, *std::max_element(times.begin(), times.end()));
  }

  // Samples poold's resident memory every 100 ms. All of poold's bounded tables are full within the first
  // third of the time.
  void resident() {
    const AttackedPoold attacked(suite_.device);
    const pid_t pid = attacked.poold().pid();
    const double turned_away = attacked.counter("gpupool_handshake_failures_total");
    const double idle = static_cast<double>(testing::resident_bytes(pid)), begin = now(),
                 seconds = 6 * suite_.seconds, end = begin + seconds;
    Attackers attackers(kAttacks, attacked.poold().port(), end, attacked.hostile_token());
    double most[3] = {};
    for (double time = begin; time < end; time = now()) {
      double& third = most[std::min(2, static_cast<int>((time - begin) / seconds * 3))];
      third = std::max(third, static_cast<double>(testing::resident_bytes(pid)));
      sleep_until(time + 0.1);
    }
    attackers.finish();
    note("resident_idle", idle / kMib);
    note("resident_first", most[0] / kMib);
    note("resident_last", most[2] / kMib);
    note("resident_attempts", attacked.counter("gpupool_handshake_failures_total") - turned_away);
  }

  // Measures the log and audit bytes of single refused attempts, and then of so many that most are only
  // counted.
  void records() {
    const AttackedPoold attacked(suite_.device);
    for (const char byte : {'x', '\x01', '"', '\xff'}) {
      hello::Hello hello = testing::test_hello();
      hello.token = std::string(64, 'x');
      hello.program = hello.host = std::string(30'000, byte);
      hello.tenant = std::string(3'000, byte);
      record(attacked, testing::hello_bytes(hello), true);
    }
    const wire::Preamble endless{.length = 0xffffffff}, damaged{.length = 4},
        newer{.protocol_version = wire::kProtocolVersion + 1};
    for (const std::string& bytes : {std::string(100, '\0'), std::string(RawClient::bytes_of(endless)),
                                     std::string(RawClient::bytes_of(damaged)) + "\xff\xff\xff\xff",
                                     std::string(RawClient::bytes_of(newer))}) {
      record(attacked, bytes, false);
    }
    const double turned_away = attacked.counter("gpupool_handshake_failures_total");
    const size_t logged = attacked.log_bytes(), audited = attacked.audit_bytes();
    Attackers({{"malformed", 200}, {"wrong_tokens", 200}}, attacked.poold().port(), now() + suite_.seconds,
              "")
        .finish();
    const double refused = attacked.counter("gpupool_handshake_failures_total"),
                 attempts = refused - turned_away;
    if (!testing::eventually([&] { return told(attacked.poold().log()) >= refused; }))
      throw std::runtime_error("not all refused attempts are in the log:\n" + attacked.poold().log());
    note("records_attempts", attempts);
    note("log_bytes_each", static_cast<double>(attacked.log_bytes() - logged) / attempts);
    note("audit_bytes_each", static_cast<double>(attacked.audit_bytes() - audited) / attempts);
  }
  void record(const AttackedPoold& attacked, const std::string& bytes, bool audited) {
    const size_t log = attacked.log_bytes(), audit = attacked.audit_bytes();
    RawClient client(attacked.poold().endpoint());
    client.send(bytes);
    client.await_end();
    if (!testing::eventually(
            [&] { return attacked.log_bytes() > log && (!audited || attacked.audit_bytes() > audit); })) {
      throw std::runtime_error("a refused attempt is not in the log or the audit file:\n" +
                               attacked.poold().log());
    }
    note("log_bytes", static_cast<double>(attacked.log_bytes() - log));
    note("audit_bytes", static_cast<double>(attacked.audit_bytes() - audit));
  }

  // Connects a good client from 127.0.0.1 every 500 ms and counts those that are served within 2 s.
  void served() {
    const testing::Authority authority("authority");
    const std::vector<Attack> flood{{"flood", 2000}}, handshakes{{"handshakes", 0, 4}},
        both{{"flood", 2000}, {"handshakes", 0, 4}};
    served_beside("flood", flood, nullptr);
    served_beside("handshakes", handshakes, &authority);
    served_beside("both", both, &authority);
  }
  void served_beside(const std::string& attack, const std::vector<Attack>& attacks,
                     const testing::Authority* authority) {
    const AttackedPoold attacked(suite_.device, authority);
    transport::Options options;
    if (authority) options.tls.ca = authority->certificate();
    const transport::Endpoint endpoint{authority ? "tls" : "tcp", "127.0.0.1", attacked.poold().port()};
    hello::Hello hello = testing::test_hello();
    hello.token = attacked.token();
    const double begin = now() + 1, end = begin + suite_.seconds;
    Attackers attackers(attacks, endpoint.port, end, options.tls.ca);
    double clients = 0, in_time = 0, slowest = 0;
    sleep_until(begin);
    for (double start = now(); start < end || clients == 0; start = now()) {
      const bool served = is_served(endpoint, options, hello);
      const double took = now() - start;
      ++clients;
      in_time += served && took <= 2 ? 1 : 0;
      slowest = std::max(slowest, took);
      sleep_until(start + 0.5);
    }
    note("attempts_" + attack, attackers.finish());
    note("served_" + attack, 100 * in_time / clients);
    note("slowest_" + attack, slowest);
  }
  static bool is_served(const transport::Endpoint& endpoint, const transport::Options& options,
                        const hello::Hello& hello) try {
    RawClient client(endpoint, options);
    client.open(hello);
    client.ping();
    return true;
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "gpupool-bench: a good client was not served: %s\n", error.what());
    return false;
  }

  void add_answers(std::vector<Figure>& figures) const;
  void add_resident(std::vector<Figure>& figures) const;
  void add_records(std::vector<Figure>& figures) const;
  void add_served(std::vector<Figure>& figures) const;

  const AttacksSuite suite_;
  Samples samples_;
};

const AttacksRun::Part AttacksRun::kParts[] = {{"answers", &AttacksRun::answers},
                                               {"resident", &AttacksRun::resident},
                                               {"records", &AttacksRun::records},
                                               {"served", &AttacksRun::served}};

void AttacksRun::add_answers(std::vector<Figure>& figures) const {
  const std::string elsewhere = "attackers on a listener that only accepts and closes";
  const double launch = samples_.median("launch_p99_attacked");
  figures.push_back({"healthz_attacked_most",
                     "tcp",
                     samples_.most("healthz_most_attacked"),
                     "s",
                     elsewhere,
                     samples_.most("healthz_most_elsewhere"),
                     {Kind::value_at_most, 0.1}});
  figures.push_back({"healthz_attacked_p99",
                     "tcp",
                     samples_.median("healthz_p99_attacked"),
                     "s",
                     elsewhere,
                     samples_.median("healthz_p99_elsewhere"),
                     {Kind::value_at_most, 0.1}});
  figures.push_back({"launch_p99_attacked",
                     "tcp",
                     launch,
                     "us",
                     elsewhere,
                     samples_.median("launch_p99_elsewhere"),
                     {Kind::ratio_at_most, 1.2}});
  figures.push_back(
      {"launch_p99_attacked", "tcp", launch, "us", "no attackers", samples_.median("launch_p99_alone")});
  figures.push_back({"attempts", "tcp", samples_.median("attempts_attacked"), "1/s", elsewhere,
                     samples_.median("attempts_elsewhere")});
}

void AttacksRun::add_resident(std::vector<Figure>& figures) const {
  const double first = samples_.median("resident_first"), last = samples_.median("resident_last");
  figures.push_back({"resident_growth",
                     "tcp",
                     last - first,
                     "MiB",
                     "most in the last third, less that of the first",
                     0,
                     {Kind::value_at_most, 2}});
  figures.push_back({"resident_attacked", "tcp", last, "MiB", "before", samples_.median("resident_idle")});
  figures.push_back({"resident_attempts", "tcp", samples_.median("resident_attempts"), "attempts",
                     "refused, beside checkpoint questions", 0});
}

void AttacksRun::add_records(std::vector<Figure>& figures) const {
  const Target most{Kind::value_at_most, 512};
  figures.push_back(
      {"log_bytes_refused", "tcp", samples_.most("log_bytes"), "bytes", "of one attempt", 0, most});
  figures.push_back(
      {"audit_bytes_refused", "tcp", samples_.most("audit_bytes"), "bytes", "of one attempt", 0, most});
  figures.push_back({"log_bytes_refused_in_numbers", "tcp", samples_.median("log_bytes_each"), "bytes",
                     "of each attempt", 0, most});
  figures.push_back({"audit_bytes_refused_in_numbers", "tcp", samples_.median("audit_bytes_each"), "bytes",
                     "of each attempt", 0, most});
}

void AttacksRun::add_served(std::vector<Figure>& figures) const {
  for (const std::string attack : {"flood", "handshakes", "both"}) {
    const std::string via = attack == "flood" ? "tcp" : "tls";
    figures.push_back({"served_beside_" + attack,
                       via,
                       samples_.least("served_" + attack),
                       "%",
                       "of good clients, within 2 s",
                       0,
                       {Kind::value_at_least, 100}});
    figures.push_back({"slowest_beside_" + attack,
                       via,
                       samples_.most("slowest_" + attack),
                       "s",
                       "until its session answers",
                       0,
                       {Kind::value_at_most, 2}});
    figures.push_back(
        {"attempts_beside_" + attack, via, samples_.median("attempts_" + attack), "1/s", "", 0});
  }
}

std::vector<Figure> AttacksRun::figures() const {
  std::vector<Figure> figures;
  if (chosen("answers")) add_answers(figures);
  if (chosen("resident")) add_resident(figures);
  if (chosen("records")) add_records(figures);
  if (chosen("served")) add_served(figures);
  return figures;
}

}  // namespace

std::vector<Figure> measure_attacks(const AttacksSuite& suite) {
  AttacksRun measured(suite);
  return measure_rounds(measured, suite.rounds);
}

}  // namespace gpupool::bench
