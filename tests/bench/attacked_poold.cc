#include "tests/bench/attacked_poold.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "common/token/token.h"
#include "tests/bench/monotonic.h"
#include "tests/bench/run_program.h"
#include "tests/support/hostile_descriptors.h"
#include "tests/support/http_get.h"

namespace gpupool::bench {
namespace {

using testing::PooldProcess;

std::string made_token() {
  const auto token = make_token();
  if (!token) throw std::runtime_error(token.error().message);
  return *token;
}

std::string tenant(const std::string& name, const std::string& token) {
  return "[[tenant]]\nname = \"" + name + "\"\ntokens = [\"" + hash_text(hash_token(token)) + "\"]\n";
}

// Returns the number after "NAME " at the start of a line.
double number_after(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + " ");
  if (at == std::string::npos) throw std::runtime_error("no " + name + " in: " + text);
  return std::stod(text.substr(at + name.size()));
}

}  // namespace

AttackedPoold::AttackedPoold(const std::string& device, const testing::Authority* authority)
    : good_(made_token()), hostile_(made_token()) {
  const std::string config = folder_.write("poold.toml", tenant("good", good_) + tenant("hostile", hostile_));
  std::vector<std::string> options{"--config",       config,
                                   "--metrics",      "127.0.0.1:0",
                                   "--audit-file",   folder_.path() / "audit.json",
                                   "--log-format",   "json",
                                   "--idle-workers", "4"};
  if (authority) {
    const auto files = authority->sign_costly("server", "IP:127.0.0.1");
    options.insert(options.end(), {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate,
                                   "--tls-key", files.key});
  }
  testing::Environment environment = device_environment();
  environment["SOFTGPU_INSTANCE"] = "bench-attacks";
  testing::without_pass_rights(
      [&] { poold_ = std::make_unique<PooldProcess>(device, options, environment); });
  const std::string before = "http://127.0.0.1:";
  if (!poold_->await_log(before))
    throw std::runtime_error("poold did not log its HTTP address: " + poold_->log());
  const std::string log = poold_->log();
  page_ = static_cast<uint16_t>(std::stoul(log.substr(log.find(before) + before.size())));
}

testing::Environment AttackedPoold::good_program() const {
  return {{"LD_LIBRARY_PATH", prefix() / "lib" / "client"},
          {"GPUPOOL", poold_->url()},
          {"GPUPOOL_TRANSPORT", "tcp"},
          {"GPUPOOL_TOKEN", good_}};
}

double AttackedPoold::counter(const std::string& name) const {
  return number_after(testing::http_get(page_, "/metrics"), name);
}

size_t AttackedPoold::audit_bytes() const {
  return std::filesystem::file_size(folder_.path() / "audit.json");
}

Attackers::Attackers(const std::vector<Attack>& attacks, uint16_t port, double end,
                     const std::string& credential) {
  for (const Attack& attack : attacks) {
    for (int i = 0; i < attack.processes; ++i) {
      const std::vector<std::string> words{
          program("gpupool-bench-attacker"), attack.way,          std::to_string(port),
          std::to_string(attack.rate),       std::to_string(end), credential};
      running_.push_back(std::make_unique<testing::Process>(words, testing::Environment{}));
    }
  }
}

double Attackers::finish() {
  double steps = 0;
  for (const auto& attacker : running_) {
    const int status = attacker->wait(std::chrono::minutes(15));
    attacker->await_end_of_output();
    if (status != 0)
      throw std::runtime_error("gpupool-bench-attacker failed (status " + std::to_string(status) + "):\n" +
                               attacker->output());
    steps += number_after(attacker->output(), "steps_per_second");
  }
  return steps;
}

ClosingListener::ClosingListener() : process_({program("gpupool-bench-attacker"), "listen"}, {}) {
  if (!process_.await_output("\n"))
    throw std::runtime_error("gpupool-bench-attacker does not listen: " + process_.output());
  port_ = static_cast<uint16_t>(number_after(process_.output(), "port"));
}

HealthChecks::HealthChecks(uint16_t page, double begin)
    : thread_([this, page, begin](const std::stop_token& stop) { run(stop, page, begin); }) {}

void HealthChecks::run(const std::stop_token& stop, uint16_t page, double begin) try {
  sleep_until(begin);
  while (!stop.stop_requested()) {
    const double asked = now();
    const std::string answer = testing::http_get(page, "/healthz");
    times_.push_back(now() - asked);
    if (answer.find(" 200 ") == std::string::npos)
      throw std::runtime_error("/healthz was answered with: " + answer);
    sleep_until(asked + 0.02);
  }
} catch (const std::exception& error) {
  failure_ = error.what();
}

std::vector<double> HealthChecks::finish() {
  thread_.request_stop();
  thread_.join();
  if (!failure_.empty()) throw std::runtime_error(failure_);
  return std::move(times_);
}

double percentile_99(std::vector<double> values) {
  if (values.empty()) throw std::runtime_error("no samples");
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, values.size() * 99 / 100)];
}

}  // namespace gpupool::bench
