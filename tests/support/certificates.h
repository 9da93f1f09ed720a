// A certificate authority for tests, and the certificates that it signs, made with the openssl command in a
// temporary folder. Throws std::runtime_error if openssl fails.
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
  // `names`: subjectAltName, e.g. "IP:127.0.0.1,DNS:localhost"; empty: none. With `days` 0 the certificate is
  // expired.
  Files sign(const std::string& common_name, const std::string& names = "", int days = 2) const;
  // Uses a 4096-bit RSA key, with which a handshake takes milliseconds of the server's CPU time.
  Files sign_costly(const std::string& common_name, const std::string& names) const;
  std::string certificate() const { return folder_.path() / "authority.pem"; }

 private:
  Files sign_key(const std::vector<std::string>& key, const std::string& common_name,
                 const std::string& names, int days) const;

  TemporaryFolder folder_;
  mutable int signed_ = 0;
};

}  // namespace gpupool::testing
