// Certificates for tests, made by the openssl command: an authority and what it signs. In a folder of its own, gone afterwards.
#pragma once
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

class Authority {
 public:
  explicit Authority(const std::string& name, int days = 2);

  struct Files {
    std::string certificate;
    std::string key;
  };
  // `names` as in subjectAltName, e.g. "IP:127.0.0.1,DNS:localhost"; empty: none. `days` 0: expired at once.
  Files sign(const std::string& common_name, const std::string& names = "", int days = 2) const;
  // With a key whose handshakes take a server milliseconds.
  Files sign_costly(const std::string& common_name, const std::string& names) const;
  std::string certificate() const { return folder_.path() / "authority.pem"; }

 private:
  Files sign_key(const std::vector<std::string>& key, const std::string& common_name, const std::string& names, int days) const;

  TemporaryFolder folder_;
  mutable int signed_ = 0;
};

}  // namespace gpupool::testing
