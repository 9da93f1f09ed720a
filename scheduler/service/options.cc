#include "scheduler/service/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/settings/option_kinds.h"
#include "common/settings/option_table.h"
#include "common/settings/toml_values.h"
#include "common/token/token.h"
#include "common/version.h"

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

Result<void> check(const Options& options) {
  if (options.key.empty())
    return wrong("--key is required: the file with the key that signs leases; created if missing");
  if (options.store.empty())
    return wrong("--store is required, for example --store sqlite:/var/lib/gpupool/pool.db");
  if (options.address.find("://") != options.address.npos)
    return wrong("--address: '" + options.address + "' is not HOST:PORT, like sched-1:9800");
  if (options.tls.certificate.empty() != options.tls.key.empty())
    return wrong("--tls-certificate and --tls-key must be used together");
  if (options.store_tls.certificate.empty() != options.store_tls.key.empty())
    return wrong("--store-certificate and --store-key must be used together");
  return {};
}

}  // namespace

OptionRows option_rows(Options& options) {
  using namespace settings::kinds;
  OptionRows rows;
#define OPTION(type, member, initial, kind, name, help) rows.emplace_back(name, kind(options.member), help);
#define OPTION_IN(field, kind, name, help) rows.emplace_back(name, kind(options.field), help);
#include "scheduler/service/options.def"
  return rows;
}

Result<void> read_config(const std::string& path, Options& options) {
  const OptionRows rows = option_rows(options);
  const auto other = [&](std::string_view table, std::string_view key) -> Result<void> {
    if (!table.empty()) return wrong("unknown key; expected " + keys_in_table(table, rows));
    if (key == "tenant" || key == "node" || key == "operator" || key == "prices")
      return {};  // Callers::read()
    if (key == "policy")
      return wrong(
          "not a key of this file; change the policy with `pool-admin policy set KEY=VALUE`, which stores "
          "it");
    return wrong(
        "unknown key; the keys are those of pool-scheduler --help, without the dashes, and tls, store_tls, "
        "usage, prices, tenant, node, operator");
  };
  return read_options_file(path, rows, other, [&](const toml::table& file) -> Result<void> {
    auto callers = Callers::read(file);
    if (!callers) return callers.error();
    options.callers = std::move(*callers);
    return {};
  });
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
  Options options;
  CLI::App app(kAbout, "pool-scheduler");
  app.footer(kNotes);
  app.set_version_flag("--version", std::string("pool-scheduler ") + kVersion);
  CommandLine command_line(app, option_rows(options));
  if (const auto status = command_line.parse(count, words)) return EarlyExit{*status};
  if (options.make_token) return print_token();
  if (!options.config_file.empty()) {
    if (const auto read = read_config(options.config_file, options); !read)
      return mistake(read.error().message);
  }
  if (const auto taken = command_line.take(); !taken) return mistake(taken.error().message);
  if (options.print_public_key)
    return print_public_key(options.key, app.count("--key") > 0
                                             ? "--key " + options.key
                                             : "--config " + options.config_file + ", which names it");
  if (const auto checked = check(options); !checked) return mistake(checked.error().message);
  return options;
}

}  // namespace gpupool::scheduler
