#include "tests/support/certificates.h"

#include <stdexcept>

namespace gpupool::testing {
namespace {

void openssl(std::vector<std::string> words) {
  words.insert(words.begin(), "openssl");
  const Finished finished = run_to_end(words, {});
  if (finished.status != 0) throw std::runtime_error("openssl " + words[1] + ": " + finished.output);
}

const std::vector<std::string> kNewKey{"-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"};
const std::vector<std::string> kCostlyKey{"-newkey", "rsa:4096", "-nodes"};

}  // namespace

Authority::Authority(const std::string& name, int days) {
  std::vector<std::string> words{"req",   "-x509",       "-days",   std::to_string(days),
                                 "-subj", "/CN=" + name, "-keyout", folder_.path() / "authority.key",
                                 "-out",  certificate()};
  words.insert(words.end(), kNewKey.begin(), kNewKey.end());
  openssl(words);
}

Authority::Files Authority::sign(const std::string& common_name, const std::string& names, int days) const {
  return sign_key(kNewKey, common_name, names, days);
}

Authority::Files Authority::sign_costly(const std::string& common_name, const std::string& names) const {
  return sign_key(kCostlyKey, common_name, names, 2);
}

Authority::Files Authority::sign_key(const std::vector<std::string>& key, const std::string& common_name,
                                     const std::string& names, int days) const {
  const std::string stem = folder_.path() / std::to_string(++signed_);
  const Files files{stem + ".pem", stem + ".key"};
  std::vector<std::string> request{"req",     "-new",    "-subj", "/CN=" + common_name,
                                   "-keyout", files.key, "-out",  stem + ".csr"};
  request.insert(request.end(), key.begin(), key.end());
  openssl(request);
  const std::string extensions =
      folder_.write(std::to_string(signed_) + ".ext",
                    "basicConstraints=CA:FALSE\n" + (names.empty() ? "" : "subjectAltName=" + names + "\n"));
  openssl({"x509", "-req", "-in", stem + ".csr", "-CA", certificate(), "-CAkey",
           folder_.path() / "authority.key", "-CAcreateserial", "-days", std::to_string(days), "-extfile",
           extensions, "-out", files.certificate});
  return files;
}

}  // namespace gpupool::testing
