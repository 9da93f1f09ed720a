// Authentication of the scheduler's callers (tenants, nodes, operators) by their bearer tokens, from the
// configuration file. Immutable; any thread.
#pragma once
#include <toml++/toml.h>

#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/token/token.h"
#include "scheduler/core/core.h"

namespace gpupool::scheduler {

enum class Role { tenant, node, operator_ };

struct Caller {
  Role role;
  std::string name;
  bool retired = false;  // a tenant's retired token: not accepted for new requests
};

// The purpose of a tenant's call. Retired tokens are accepted only for existing leases and requests.
enum class Purpose { new_request, existing_lease };

class Callers {
 public:
  Callers() = default;
  // Reads [[tenant]], [[node]], [[operator]] and [prices] of the configuration. ErrorCode::invalid names the
  // wrong key. If one entry has a token, all must have one. Without entries there is one tenant, "default",
  // and callers are not authenticated.
  static Result<Callers> read(const toml::table& file);

  const std::vector<ConfiguredTenant>& tenants() const { return tenants_; }
  const Prices& prices() const { return prices_; }
  bool has_tokens() const { return !by_token_.empty(); }

  // Authenticate a caller and return its name. `token` is the bearer token, may be empty. `name` is the name
  // that the caller claims, may be empty for a tenant. ErrorCode::refused: no token or an unknown one; the
  // message says what to do. ErrorCode::invalid: the token belongs to another role or name.
  Result<std::string> find_tenant(const std::string& token, const std::string& name, Purpose purpose) const;
  Result<std::string> find_node(const std::string& token, const std::string& name) const;
  // Checks that the token has the role; accepts retired tokens.
  Result<void> check(const std::string& token, Role role) const;
  Result<std::string> find_operator(const std::string& token) const;

 private:
  Result<void> check_budgets(const std::vector<ConfiguredTenant>& tenants) const;
  Result<const Caller*> find(const std::string& token, Role role) const;

  std::vector<ConfiguredTenant> tenants_{{kDefaultTenant, {}}};
  std::map<TokenHash, Caller> by_token_;
  Prices prices_;
};

}  // namespace gpupool::scheduler
