// Who a client is, by what it shows.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "protocol/wire/result.h"
#include "server/tenants/credential.h"
#include "server/tenants/tenants.h"

namespace gpupool::server {

// As the client says it, except where said.
struct Credentials {
  std::string tenant;  // empty: whichever the rest belongs to
  std::string token;
  std::vector<std::string> certificate_names;  // checked: a trusted authority has signed them
  std::optional<uid_t> user;                   // checked: the kernel says it, of a client on this host
};

struct Admission {
  const Tenant* tenant;  // never null
  Credential by;
};

// The tenant whose token, certificate or user it is. Where no tenant has any, the one that the client names, else the default one or the
// only one. ErrorCode::refused: the message is for the client; it does not tell which part was wrong, and neither does the time.
Result<Admission> authenticate(const Tenants& tenants, const Credentials& shown);

// Why what was begun as `tenant`, with this credential, may not go on, for its client; nothing: it may. A lease's tenant goes with its lease.
std::optional<std::string> revoked(const Tenants& tenants, const std::string& tenant, const Credential& by);

}  // namespace gpupool::server
