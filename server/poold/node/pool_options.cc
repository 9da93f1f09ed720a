#include "server/poold/node/pool_options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "common/settings/toml_values.h"
#include "common/text/units.h"
#include "protocol/lease/token.h"
#include "protocol/transport/transport.h"

namespace gpupool::server {
namespace {

using namespace settings;

constexpr unsigned kMostCpuMilli = 10'000'000;
constexpr const char* kKeys =
    "unknown key; [pool] keys are schedulers, token_file, name, addresses, public_keys, ca, insecure, rack, "
    "zone, cpu_milli, host_memory";

Result<void> read_key(std::string_view key, const toml::node& node, PoolOptions& options) {
  if (key == "schedulers") return to_list(node, options.schedulers);
  if (key == "token_file") return to_text(node, options.token_file);
  if (key == "name") return to_text(node, options.name);
  if (key == "addresses") return to_list(node, options.addresses);
  if (key == "public_keys") return to_list(node, options.public_keys);
  if (key == "ca") return to_text(node, options.ca);
  if (key == "rack") return to_text(node, options.rack);
  if (key == "zone") return to_text(node, options.zone);
  if (key == "insecure") return to_flag(node, options.insecure);
  if (key == "cpu_milli") return to_count(node, 0, kMostCpuMilli, options.cpu_milli);
  if (key == "host_memory") return to_bytes(node, parse_memory, options.host_memory_bytes);
  return wrong(kKeys);
}

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

PoolCommandLine::PoolCommandLine(CLI::App& app) : app_(app) {
  app.add_option("--pool-scheduler", values_.schedulers,
                 "HOST:PORT of a scheduler of this host's pool; separate several by commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--pool-token-file", values_.token_file,
                 "file with the token that authenticates this host to the scheduler");
  app.add_option("--pool-name", values_.name, "this host's name in the pool [its host name]");
  app.add_option("--pool-address", values_.addresses,
                 "address at which clients reach this host, e.g. tls://gpu-1:9700; may be repeated, best "
                 "first [those of --listen]")
      ->allow_extra_args(false);
  app.add_option(
         "--pool-public-key", values_.public_keys,
         "PEM file with the public key that verifies the pool's leases; may be repeated, to rotate keys")
      ->allow_extra_args(false);
  app.add_option("--pool-ca", values_.ca,
                 "CA certificates that sign the schedulers' certificates (PEM) [the system's]");
  app.add_flag("--pool-insecure", values_.insecure,
               "connect to schedulers on other hosts without TLS; trusted networks only");
  app.add_option("--pool-rack", values_.rack, "rack of this host, used to place leases of several hosts");
  app.add_option("--pool-zone", values_.zone, "zone of this host, used to place leases of several hosts");
  app.add_option("--pool-cpu-milli", values_.cpu_milli,
                 "CPU capacity offered to leases, in thousandths of a CPU [0]")
      ->check(CLI::Range(0u, kMostCpuMilli));
  app.add_option("--pool-host-memory", host_memory_, "host memory offered to leases, e.g. 64GiB [0]");
}

Result<void> PoolCommandLine::apply(PoolOptions& options) const {
  const auto take = [&](const char* name, const auto& given, auto& out) {
    if (app_.count(name) > 0) out = given;
  };
  take("--pool-scheduler", values_.schedulers, options.schedulers);
  take("--pool-token-file", values_.token_file, options.token_file);
  take("--pool-name", values_.name, options.name);
  take("--pool-address", values_.addresses, options.addresses);
  take("--pool-public-key", values_.public_keys, options.public_keys);
  take("--pool-ca", values_.ca, options.ca);
  take("--pool-insecure", values_.insecure, options.insecure);
  take("--pool-rack", values_.rack, options.rack);
  take("--pool-zone", values_.zone, options.zone);
  take("--pool-cpu-milli", values_.cpu_milli, options.cpu_milli);
  if (app_.count("--pool-host-memory") > 0) {
    const auto parsed = parse_memory(host_memory_);
    if (!parsed) return wrong("--pool-host-memory: " + parsed.error().message);
    options.host_memory_bytes = *parsed;
  }
  return {};
}

Result<void> read_pool(const toml::node& node, PoolOptions& options) {
  return for_each_key(
      node, [&](std::string_view key, const toml::node& value) { return read_key(key, value, options); });
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
