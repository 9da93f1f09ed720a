// A poold with everything that the suite `attacks` attacks and looks at, and the programs that attack it.
#pragma once
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/support/certificates.h"
#include "tests/support/poold_process.h"

namespace gpupool::bench {

// Tenants `good` and `hostile`, a page for /healthz and /metrics, and an audit file. On kernels that refuse descriptors for it, poold is started as on
// one that does not (before Linux 6.16), so that they reach it.
class AttackedPoold {
 public:
  // `authority`: it listens on tls:// with a certificate of this authority's, whose key is RSA of 4096 bits; null: on tcp://.
  AttackedPoold(const std::string& device, const testing::Authority* authority = nullptr);

  testing::PooldProcess& poold() const { return *poold_; }
  uint16_t page() const { return page_; }
  const std::string& token() const { return good_; }
  const std::string& hostile_token() const { return hostile_; }
  testing::Environment good_program() const;
  double counter(const std::string& name) const;  // of /metrics
  size_t log_bytes() const { return poold_->log().size(); }
  size_t audit_bytes() const;

 private:
  testing::TemporaryFolder folder_;
  std::string good_, hostile_;
  std::unique_ptr<testing::PooldProcess> poold_;
  uint16_t page_ = 0;
};

struct Attack {
  const char* way;   // of tests/bench/attacker.cc
  double rate;       // steps a second; 0: without a pause
  int processes = 1;
};

// Attackers that run until `end` (monotonic.h). Their loopback addresses are not 127.0.0.1.
class Attackers {
 public:
  // `credential`: as tests/bench/attacker.cc has it.
  Attackers(const std::vector<Attack>& attacks, uint16_t port, double end, const std::string& credential);
  double finish();  // steps a second of all together; throws when one failed

 private:
  std::vector<std::unique_ptr<testing::Process>> running_;
};

// The baseline: attackers connect to this listener instead of poold. It accepts connections and closes them.
class ClosingListener {
 public:
  ClosingListener();
  uint16_t port() const { return port_; }

 private:
  testing::Process process_;
  uint16_t port_ = 0;
};

// Asks /healthz each 20 ms from `begin` on, on a thread of its own.
class HealthChecks {
 public:
  HealthChecks(uint16_t page, double begin);
  std::vector<double> finish();  // the seconds that each answer took; throws when one was another than 200

 private:
  void run(const std::stop_token& stop, uint16_t page, double begin);

  std::vector<double> times_;
  std::string failure_;
  std::jthread thread_;
};

double percentile_99(std::vector<double> values);

}  // namespace gpupool::bench
