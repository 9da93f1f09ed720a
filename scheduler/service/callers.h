// Who may call the scheduler, by the token that it shows: tenants, nodes, operators. Immutable; any thread.
#pragma once
#include <toml++/toml.h>

#include <map>
#include <string>
#include <vector>

#include "protocol/wire/result.h"
#include "scheduler/core/core.h"
#include "server/tenants/tenant.h"

namespace gpupool::scheduler {

enum class Role { tenant, node, operator_ };

struct Caller {
  Role role;
  std::string name;
  bool retired = false;  // a tenant's token that begins nothing more
};

// What a tenant's call is for: retired tokens are good for what they have begun.
enum class For { something_new, what_is_there };

class Callers {
 public:
  Callers() = default;
  // [[tenant]], [[node]] and [[operator]] of the configuration. What is wrong is ErrorCode::invalid and names the key. If anybody has a
  // token all must have one. Nobody at all: there is one tenant, "default", and everybody is believed.
  static Result<Callers> read(const toml::table& file);

  const std::vector<ConfiguredTenant>& tenants() const { return tenants_; }
  bool has_tokens() const { return !by_token_.empty(); }

  // ErrorCode::refused: not known, with what to do about it; invalid: known, but somebody else (of another kind). `token`: what
  // was shown. `name`: who it says it is, if anything; it must not be somebody else.
  Result<std::string> tenant(const std::string& token, const std::string& name, For purpose) const;
  Result<std::string> node(const std::string& token, const std::string& name) const;
  // Whether the token gives its owner the role, perhaps for what is there only.
  Result<void> check(const std::string& token, Role role) const;
  Result<std::string> operator_(const std::string& token) const;

 private:
  Result<const Caller*> find(const std::string& token, Role role) const;

  std::vector<ConfiguredTenant> tenants_{{server::kDefaultTenant, {}}};
  std::map<server::TokenHash, Caller> by_token_;
};

}  // namespace gpupool::scheduler
