// The credential that admitted a client. Sessions keep it, so that they end when it is removed from the
// configuration. Plain values; any thread.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "server/tenants/tenant.h"

namespace gpupool::server {

struct Credential {
  enum class Kind { none, token, certificate, user, lease };
  Kind kind = Kind::none;  // none: no authentication was needed
  TokenHash token{};
  std::vector<std::string> names;  // names in the certificate that belong to the tenant
  uid_t user = 0;
  // Returns, for logs, "token 1a2b3c4d" (first digits of the hash in the configuration), "certificate NAME",
  // "user 1000", "lease", or an empty text for none.
  std::string text() const;
};

}  // namespace gpupool::server
