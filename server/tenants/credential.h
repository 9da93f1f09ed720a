// What admitted a client. Sessions keep it, so that they end when it is taken away. Values; any thread.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "server/tenants/tenant.h"

namespace gpupool::server {

struct Credential {
  enum class Kind { none, token, certificate, user, lease };
  Kind kind = Kind::none;          // none: nobody had to show anything
  TokenHash token{};
  std::vector<std::string> names;  // of the certificate, as far as they are the tenant's
  uid_t user = 0;
  // For logs: "token 1a2b3c4d" (the first digits of its hash in the configuration), "certificate NAME", "user 1000", "lease"; empty for none.
  std::string text() const;
};

}  // namespace gpupool::server
