#include "server/tenants/authenticate.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "common/token/token.h"

namespace gpupool::server {
namespace {

Error refused(const std::string& why) {
  return {ErrorCode::refused, why};
}

// Takes a time that does not depend on the position of a difference.
bool same(const TokenHash& a, const TokenHash& b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// Compares with all tokens, so that the time does not depend on the result.
bool contains(const std::vector<TokenHash>& tokens, const TokenHash& shown) {
  bool found = false;
  for (const TokenHash& token : tokens) found |= same(token, shown);
  return found;
}

bool has_certificate(const Tenant& tenant, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(tenant.certificates.begin(), tenant.certificates.end(), name) !=
           tenant.certificates.end();
  });
}

bool has_user(const Tenant& tenant, uid_t user) {
  return std::find(tenant.users.begin(), tenant.users.end(), user) != tenant.users.end();
}

Result<Admission> by_requested_name(const Tenants& tenants, const std::string& name) {
  const Tenant* const found = tenants.find(name.empty() ? kDefaultTenant : name);
  if (found && !found->leased) return Admission{found, {}};
  const auto configured = [](const auto& entry) { return !entry.second.leased; };
  if (name.empty() && std::count_if(tenants.all().begin(), tenants.all().end(), configured) == 1) {
    return Admission{&std::find_if(tenants.all().begin(), tenants.all().end(), configured)->second, {}};
  }
  if (name.empty()) return refused("this server has several tenants: set GPUPOOL_TENANT to yours");
  return refused("this server has no tenant with the name in GPUPOOL_TENANT");
}

// `rank`: 1 for a user, 2 for a certificate, 3 for a token.
Credential credential_of(const Tenant& tenant, const Credentials& shown, const TokenHash& token, int rank) {
  Credential by;
  by.kind = rank == 3   ? Credential::Kind::token
            : rank == 2 ? Credential::Kind::certificate
                        : Credential::Kind::user;
  if (rank == 3) by.token = token;
  if (rank == 1) by.user = *shown.user;
  if (rank != 2) return by;
  std::copy_if(shown.certificate_names.begin(), shown.certificate_names.end(), std::back_inserter(by.names),
               [&](const std::string& name) { return has_certificate(tenant, {name}); });
  return by;
}

}  // namespace

std::string Credential::text() const {
  constexpr size_t kPrefix = std::string_view("sha256:").size(), kDigits = 8;
  switch (kind) {
    case Kind::none: break;
    case Kind::token: return "token " + hash_text(token).substr(kPrefix, kDigits);
    case Kind::certificate: return "certificate " + (names.empty() ? "" : names.front());
    case Kind::user: return "user " + std::to_string(user);
    case Kind::lease: return "lease";
  }
  return "";
}

Result<Admission> authenticate(const Tenants& tenants, const Credentials& shown) {
  if (tenants.serves_anonymous()) return by_requested_name(tenants, shown.tenant);
  if (!tenants.has_credentials()) {
    return refused(
        "this server only accepts leases: connect through the pool's scheduler (pool-run --server "
        "pool://HOST:PORT)");
  }
  const bool token_fits = shown.token.size() >= kShortestToken;
  const TokenHash hash = hash_token(shown.token);
  // A token takes precedence over a certificate, and a certificate over a user of this host: a program may
  // have all of them, for different tenants.
  const Tenant* best = nullptr;
  int best_rank = 0;
  for (const auto& [name, tenant] : tenants.all()) {
    int rank = 0;
    if (shown.user && has_user(tenant, *shown.user)) rank = 1;
    if (has_certificate(tenant, shown.certificate_names)) rank = 2;
    if (contains(tenant.tokens, hash) && token_fits) rank = 3;
    if (rank > best_rank && (shown.tenant.empty() || shown.tenant == name)) {
      best = &tenant;
      best_rank = rank;
    }
  }
  // A wrong token is refused, even if another credential matches.
  if (best && (shown.token.empty() || best_rank == 3))
    return Admission{best, credential_of(*best, shown, hash, best_rank)};
  if (shown.token.empty() && shown.certificate_names.empty()) {
    return refused(
        "authentication required: set GPUPOOL_TOKEN_FILE to a file with your token, or use a tls:// address "
        "with "
        "GPUPOOL_TLS_CERT");
  }
  return refused(
      "authentication failed: no tenant matches; check GPUPOOL_TOKEN_FILE, GPUPOOL_TOKEN, GPUPOOL_TLS_CERT, "
      "GPUPOOL_TENANT");
}

std::optional<std::string> revoked(const Tenants& tenants, const std::string& name, const Credential& by) {
  if (by.kind == Credential::Kind::lease) return std::nullopt;
  const Tenant* const tenant = tenants.find(name);
  if (!tenant) return "tenant '" + name + "' was removed from the server's configuration";
  const auto unless = [&](bool stays, const char* what) {
    return stays ? std::nullopt
                 : std::optional(
                       "the " + std::string(what) +
                       " that authenticated this session was removed from the server's configuration");
  };
  switch (by.kind) {
    case Credential::Kind::token:
      return unless(contains(tenant->tokens, by.token) || contains(tenant->retired_tokens, by.token),
                    "token");
    case Credential::Kind::certificate: return unless(has_certificate(*tenant, by.names), "certificate name");
    case Credential::Kind::user: return unless(has_user(*tenant, by.user), "user");
    default:
      return tenants.serves_anonymous()
                 ? std::nullopt
                 : std::optional<std::string>(
                       "this server now requires authentication: use a token or a certificate");
  }
}

}  // namespace gpupool::server
