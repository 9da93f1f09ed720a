// Two servers at tcp or tls ports that connect to each other, and the environments of their programs.
// Included by the tests of this folder. Not thread-safe; a failed start throws.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/pool.h"
#include "tests/support/certificates.h"

namespace gpupool::testing {

class TwoHosts {
 public:
  static constexpr size_t kCount = 2;
  enum class Ports { tcp, tls };

  // `more`: further options of both poolds.
  explicit TwoHosts(Ports ports, const std::vector<std::string>& more = {})
      : scheme_(ports == Ports::tls ? "tls" : "tcp"),
        authority_(ports == Ports::tls ? std::make_unique<Authority>("authority") : nullptr),
        pools_{Pool({}, options(more)), Pool({}, options(more))} {}

  Pool& operator[](size_t host) { return pools_[host]; }
  // The address of this port of the machine, which may be a proxy's.
  std::string url(uint16_t port) const { return scheme_ + "://127.0.0.1:" + std::to_string(port); }
  std::string url_of(size_t host) { return url(pools_[host].poold().port()); }
  // The certificate of the authority that signs the servers' certificates. For tls ports only.
  std::string authority_certificate() const { return authority_->certificate(); }
  // The environment of programs that use the servers at these addresses.
  Environment environment(const std::string& urls) const {
    Environment environment{{"GPUPOOL", urls}, {"GPUPOOL_SHM", "0"}};
    if (authority_) environment["GPUPOOL_TLS_CA"] = authority_certificate();
    return pools_[0].through(environment);
  }
  // The environment of programs whose sessions start on this server.
  Environment through(size_t host) { return environment(url_of(host)); }

 private:
  std::vector<std::string> options(std::vector<std::string> more) const {
    more.insert(more.end(), {"--resume-timeout", "60", "--peers", "127.0.0.0/8"});
    if (!authority_) return more;
    const auto files = authority_->sign("server", "IP:127.0.0.1");
    more.insert(more.end(), {"--listen", "tls://127.0.0.1:0", "--tls-certificate", files.certificate,
                             "--tls-key", files.key});
    return more;
  }

  const std::string scheme_;
  const std::unique_ptr<const Authority> authority_;  // null: the ports are not encrypted
  std::array<Pool, kCount> pools_;
};

}  // namespace gpupool::testing
