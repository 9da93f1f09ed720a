// Certificates for tests, made by the openssl command: an authority and what it signs. In a folder of its own, gone afterwards.
#pragma once
#include <string>

#include "tests/support/processes.h"

namespace gpupool::testing {

class Authority {
 public:
  explicit Authority(const std::string& name);

  struct Files {
    std::string certificate;
    std::string key;
  };
  // `names` as in subjectAltName, e.g. "IP:127.0.0.1,DNS:localhost"; empty: none. `days` 0: expired at once.
  Files sign(const std::string& common_name, const std::string& names = "", int days = 2) const;
  std::string certificate() const { return folder_.path() / "authority.pem"; }

 private:
  TemporaryFolder folder_;
  mutable int signed_ = 0;
};

}  // namespace gpupool::testing
