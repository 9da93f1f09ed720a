// Authenticates clients by their tokens, certificates and user IDs. The daemon calls it on poold's thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "server/tenants/credential.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

// Sent by the client and unverified, except where said.
struct Credentials {
  std::string tenant;  // empty: any
  std::string token;
  std::vector<std::string> certificate_names;  // verified: signed by a trusted authority
  std::optional<uid_t> user;                   // verified: reported by the kernel, for a client on this host
};

struct Admission {
  const Tenant* tenant;  // never null
  Credential by;
};

// Returns the tenant whose token, certificate or user matches. If no tenant has credentials, returns the
// tenant that the client names, else the default or only one. ErrorCode::refused: the message is for the
// client; neither the message nor the time taken tells which part was wrong.
Result<Admission> authenticate(const Tenants& tenants, const Credentials& shown);

// Returns the reason why a session that was admitted as `tenant` with this credential must end, as text for
// its client; nothing: it may go on. Sessions by lease end with their leases.
std::optional<std::string> revoked(const Tenants& tenants, const std::string& tenant, const Credential& by);

}  // namespace gpupool::server
