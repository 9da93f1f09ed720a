#include "scheduler/service/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/settings/command_line.h"
#include "common/settings/toml_values.h"
#include "common/token/token.h"
#include "common/version.h"
#include "protocol/transport/tls/toml_options.h"

namespace gpupool::scheduler {
namespace {

using namespace settings;

constexpr const char* kAbout =
    "pool-scheduler: makes one pool of many GPU hosts. poolds register with it, clients get leases of GPUs "
    "from it.\n"
    "It is not in the data path: existing leases continue while no scheduler runs.";
constexpr const char* kNotes = "Exit status: 0 after SIGTERM or SIGINT, 1 on failure, 2 for a usage error.";

EarlyExit mistake(const std::string& what) {
  std::fprintf(stderr, "pool-scheduler: %s\n", what.c_str());
  return {kExitUsage};
}

EarlyExit failure(const std::string& what) {
  std::fprintf(stderr, "pool-scheduler: %s\n", what.c_str());
  return {kExitFailure};
}

EarlyExit print(const std::string& text) {
  const bool good = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return {good ? 0 : kExitFailure};
}

// `option`: the command-line option that names the key, for the message.
EarlyExit print_public_key(const std::string& path, const std::string& option) {
  if (path.empty()) return mistake("--print-public-key requires --key, or key in the --config file");
  bool made = false;
  const auto key = load_key(path, made);
  if (!key) return failure(key.error().message);
  if (made) {
    std::fprintf(stderr, "pool-scheduler: created a new key in '%s'; start pool-scheduler with %s\n",
                 path.c_str(), option.c_str());
  }
  return print(key->public_key().pem());
}

EarlyExit print_token() {
  const auto token = make_token();
  if (!token) return failure(token.error().message);
  return print(*token + "\ntokens = [\"" + hash_text(hash_token(*token)) + "\"]\n");
}

Result<void> read_key(std::string_view key, const toml::node& node, Options& options) {
  if (key == "tenant" || key == "node" || key == "operator") return {};  // Callers::read()
  if (key == "listen") return to_text(node, options.listen);
  if (key == "address") return to_text(node, options.address);
  if (key == "port-file") return to_text(node, options.port_file);
  if (key == "store") return to_text(node, options.store);
  if (key == "key") return to_text(node, options.key);
  if (key == "metrics") return to_text(node, options.metrics);
  if (key == "audit-file") return to_text(node, options.audit_file);
  if (key == "tls") return to_tls(node, "client_ca", options.tls);
  if (key == "store_tls") return to_tls(node, "ca", options.store_tls);
  if (key == "return-time") return to_seconds(node, options.return_time);
  if (key == "log-level") return to_level(node, options.log_level);
  if (key == "log-format") return to_format(node, options.log_format);
  if (key == "insecure") return to_flag(node, options.insecure);
  if (key == "policy")
    return wrong(
        "not a key of this file; change the policy with `pool-admin policy set KEY=VALUE`, which stores it");
  return wrong(
      "unknown key; the keys are those of pool-scheduler --help, without the dashes, and tls, store_tls, "
      "tenant, node, operator");
}

}  // namespace

Result<void> read_config(const std::string& path, Options& options) {
  const auto table = read_file(path);
  if (!table) return table.error();
  const auto in_file = [&](const Error& error) {
    return wrong("configuration file '" + path + "': " + error.message);
  };
  const auto read = for_each_key(
      *table, [&](std::string_view key, const toml::node& node) { return read_key(key, node, options); });
  if (!read) return in_file(read.error());
  auto callers = Callers::read(*table);
  if (!callers) return in_file(callers.error());
  options.callers = std::move(*callers);
  return {};
}

Result<lease::SigningKey> load_key(const std::string& path, bool& made) {
  made = ::access(path.c_str(), F_OK) != 0;
  if (!made) return lease::SigningKey::read(path);
  auto key = lease::SigningKey::make();
  if (!key) return key;
  if (const auto written = key->write(path); !written) return written.error();
  return key;
}

std::variant<Options, EarlyExit> parse_options(int count, char** words) {
  Options given;
  std::string level, format;
  bool make_token = false, public_key = false;
  double return_seconds = 0;
  CLI::App app(kAbout, "pool-scheduler");
  app.footer(kNotes);
  app.set_version_flag("--version", std::string("pool-scheduler ") + kVersion);
  app.add_option("--listen", given.listen, "HOST:PORT to listen on (port 0: any free port) [127.0.0.1:9800]");
  app.add_option("--address", given.address,
                 "HOST:PORT that the pool's other schedulers advertise for this one [--listen]");
  app.add_option("--port-file", given.port_file, "write the port to this file when ready");
  app.add_option(
      "--store", given.store,
      "store for leases: sqlite:FILE, or for several schedulers etcd://HOST:PORT,HOST:PORT,.../PREFIX "
      "(etcds:// with TLS, required beyond loopback)");
  app.add_option("--store-ca", given.store_tls.ca, "CA certificates for etcd (PEM) [the system's]");
  app.add_option("--store-certificate", given.store_tls.certificate, "client certificate for etcd (PEM)");
  app.add_option("--store-key", given.store_tls.key, "private key of the client certificate (PEM)");
  app.add_option("--key", given.key,
                 "file with the private key that signs leases (PEM, Ed25519); created if missing");
  app.add_flag(
      "--print-public-key", public_key,
      "print the public key for poold's configuration (creates the --key file if missing), and exit");
  app.add_flag("--make-token", make_token, "print a new token and its hash for the configuration, and exit");
  app.add_option("--metrics", given.metrics,
                 "HOST:PORT that serves /metrics (Prometheus), /healthz and /readyz over HTTP");
  app.add_option("--tls-certificate", given.tls.certificate,
                 "the scheduler's certificate and its chain (PEM)");
  app.add_option("--tls-key", given.tls.key, "private key of the certificate (PEM)");
  app.add_option("--tls-client-ca", given.tls.ca,
                 "CA certificates for clients (PEM); clients without a certificate are rejected");
  app.add_option("--audit-file", given.audit_file,
                 "append a JSON line for each lease's grant and end, and for operators' commands");
  app.add_option(
         "--return-time", return_seconds,
         "seconds in which a new leader grants no leases, so that waiting clients can return first [1.5]")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option(
      "--config", given.config_file,
      "TOML file with the same keys, and with tenants, nodes and operators; the command line overrides it. "
      "SIGHUP reloads tenants, nodes and operators");
  app.add_option("--log-level", level, std::string("one of ") + kLogLevels + " [info]");
  app.add_option("--log-format", format, std::string("one of ") + kLogFormats + " [text]");
  app.add_flag("--insecure", given.insecure,
               "listen beyond loopback without TLS or tokens, and use etcd:// there");
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return EarlyExit{app.exit(error)};
    return mistake(describe_usage_error(app, error) + "; see pool-scheduler --help");
  }
  if (make_token) return print_token();
  Options options;
  options.config_file = given.config_file;
  if (!given.config_file.empty()) {
    if (const auto read = read_config(given.config_file, options); !read)
      return mistake(read.error().message);
  }
  for (const auto& [name, from, to] :
       {std::tuple("--listen", &given.listen, &options.listen),
        {"--address", &given.address, &options.address},
        {"--port-file", &given.port_file, &options.port_file},
        {"--store", &given.store, &options.store},
        {"--store-ca", &given.store_tls.ca, &options.store_tls.ca},
        {"--store-certificate", &given.store_tls.certificate, &options.store_tls.certificate},
        {"--store-key", &given.store_tls.key, &options.store_tls.key},
        {"--key", &given.key, &options.key},
        {"--metrics", &given.metrics, &options.metrics},
        {"--tls-certificate", &given.tls.certificate, &options.tls.certificate},
        {"--tls-key", &given.tls.key, &options.tls.key},
        {"--tls-client-ca", &given.tls.ca, &options.tls.ca},
        {"--audit-file", &given.audit_file, &options.audit_file}}) {
    if (app.count(name) > 0) *to = *from;
  }
  if (app.count("--return-time") > 0)
    options.return_time = std::chrono::milliseconds(static_cast<int64_t>(return_seconds * 1000));
  if (app.count("--insecure") > 0) options.insecure = true;
  if (!level.empty() && !log::parse(level, options.log_level))
    return mistake("--log-level: '" + level + "' is not one of " + kLogLevels);
  if (!format.empty() && !log::parse(format, options.log_format))
    return mistake("--log-format: '" + format + "' is not one of " + kLogFormats);
  if (public_key)
    return print_public_key(options.key, app.count("--key") > 0
                                             ? "--key " + options.key
                                             : "--config " + options.config_file + ", which names it");
  if (options.key.empty())
    return mistake("--key is required: the file with the key that signs leases; created if missing");
  if (options.store.empty())
    return mistake("--store is required, for example --store sqlite:/var/lib/gpupool/pool.db");
  if (options.address.find("://") != options.address.npos)
    return mistake("--address: '" + options.address + "' is not HOST:PORT, like sched-1:9800");
  if (options.tls.certificate.empty() != options.tls.key.empty())
    return mistake("--tls-certificate and --tls-key must be used together");
  if (options.store_tls.certificate.empty() != options.store_tls.key.empty())
    return mistake("--store-certificate and --store-key must be used together");
  return options;
}

}  // namespace gpupool::scheduler
