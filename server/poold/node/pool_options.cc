#include "server/poold/node/pool_options.h"

#include <unistd.h>

#include "common/settings/option_kinds.h"
#include "common/settings/toml_values.h"
#include "common/text/units.h"
#include "protocol/lease/token.h"
#include "protocol/transport/transport.h"

namespace gpupool::server {
namespace {

using namespace settings;

bool is_host_and_port(const std::string& text) {
  const auto endpoint = transport::Endpoint::parse("tcp://" + text);
  return endpoint && endpoint->port != 0;
}

std::string this_host() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return {};
  const std::string whole = name;
  return whole.substr(0, whole.find('.'));
}

}  // namespace

OptionRows pool_rows(PoolOptions& options) {
  using namespace settings::kinds;
  OptionRows rows;
#define OPTION(type, member, initial, kind, name, help) rows.emplace_back(name, kind(options.member), help);
#include "server/poold/node/pool_options.def"
  return rows;
}

Result<void> check_pool(PoolOptions& options) {
  if (!options.configured()) {
    const bool asked = !options.name.empty() || !options.token_file.empty() || !options.addresses.empty() ||
                       !options.ca.empty() || options.insecure;
    return asked ? wrong("[pool] schedulers: missing; [pool] needs schedulers or public_keys")
                 : Result<void>();
  }
  if (options.public_keys.empty()) return wrong("[pool] public_keys: required to verify leases");
  if (options.name.empty()) options.name = this_host();
  if (!lease::is_name(options.name)) {
    return wrong("[pool] name: '" + options.name + "' must be 1 to " + std::to_string(lease::kLongestName) +
                 " letters, digits, '-', '_' or '.'");
  }
  for (const std::string* const place : {&options.rack, &options.zone}) {
    if (!place->empty() && !lease::is_name(*place))
      return wrong("[pool] rack, zone: '" + *place + "' must be a name like [pool] name");
  }
  for (const std::string& scheduler : options.schedulers) {
    if (!is_host_and_port(scheduler)) return wrong("[pool] schedulers: '" + scheduler + "' is not HOST:PORT");
  }
  for (const std::string& address : options.addresses) {
    if (const auto endpoint = transport::Endpoint::parse(address); !endpoint)
      return wrong("[pool] addresses: " + endpoint.error().message);
  }
  if (options.insecure && !options.ca.empty()) return wrong("[pool] ca: conflicts with insecure = true");
  return {};
}

Result<std::vector<lease::PublicKey>> read_public_keys(const std::vector<std::string>& files) {
  std::vector<lease::PublicKey> keys;
  for (const std::string& file : files) {
    auto key = lease::PublicKey::read(file);
    if (!key) return key.error();
    keys.push_back(*key);
  }
  return keys;
}

}  // namespace gpupool::server
