// A poold under attack, and its attackers, for gpupool-bench --suite attacks. Failures are exceptions.
#pragma once
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/support/certificates.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {

// A poold with the tenants `good` and `hostile`, an HTTP endpoint for /healthz and /metrics, and an audit
// file. It runs without SO_PASSRIGHTS, as on kernels before Linux 6.16, so that file descriptors sent by
// attackers reach it.
class AttackedPoold {
 public:
  // With `authority`, poold listens on tls:// with a certificate signed by it and a 4096-bit RSA key; else on
  // tcp://.
  AttackedPoold(const std::string& device, const testing::Authority* authority = nullptr);

  testing::PooldProcess& poold() const { return *poold_; }
  uint16_t page() const { return page_; }
  const std::string& token() const { return good_; }
  const std::string& hostile_token() const { return hostile_; }
  testing::Environment good_program() const;
  double counter(const std::string& name) const;  // a metric of /metrics
  size_t log_bytes() const { return poold_->log().size(); }
  size_t audit_bytes() const;

 private:
  testing::TemporaryFolder folder_;
  std::string good_, hostile_;
  std::unique_ptr<testing::PooldProcess> poold_;
  uint16_t page_ = 0;
};

struct Attack {
  const char* way;  // name of an attack in attacker.cc
  double rate;      // steps per second; 0: without pauses
  int processes = 1;
};

// Attacker processes that run until `end` (monotonic.h). They connect from other loopback addresses than
// 127.0.0.1.
class Attackers {
 public:
  // `credential`: see attacker.cc.
  Attackers(const std::vector<Attack>& attacks, uint16_t port, double end, const std::string& credential);
  double finish();  // waits; returns the total steps per second; throws if an attacker failed

 private:
  std::vector<std::unique_ptr<testing::Process>> running_;
};

// The baseline target of attackers: a process that accepts connections and closes them.
class ClosingListener {
 public:
  ClosingListener();
  uint16_t port() const { return port_; }

 private:
  testing::Process process_;
  uint16_t port_ = 0;
};

// Requests /healthz every 20 ms from `begin` on, on a thread of its own.
class HealthChecks {
 public:
  HealthChecks(uint16_t page, double begin);
  std::vector<double> finish();  // the response times in seconds; throws if a status was not 200

 private:
  void run(const std::stop_token& stop, uint16_t page, double begin);

  std::vector<double> times_;
  std::string failure_;
  std::jthread thread_;
};

double percentile_99(std::vector<double> values);

}  // namespace gpupool::bench
