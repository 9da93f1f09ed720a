#include "scheduler/admin/pool/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <new>
#include <vector>

#include "common/settings/command_line.h"
#include "common/version.h"
#include "protocol/control/pool_quota_kinds.h"
#include "protocol/environment.h"
#include "protocol/scheduler/channel.h"
#include "scheduler/admin/completion.h"
#include "scheduler/admin/pool/commands.h"
#include "scheduler/admin/quota_words.h"

namespace gpupool::admin {
namespace {

constexpr const char* kAbout =
    "pool-admin --scheduler: shows the state of a pool of GPU hosts, and changes quotas, the policy, nodes "
    "and leases.\n"
    "It authenticates with an operator's token. Without --scheduler and GPUPOOL_SCHEDULER it administers a "
    "poold on this host.";
constexpr const char* kNotes =
    "Policy keys: placement, preemption (on, off), grace, hold, token, heartbeat, node-lost (seconds), "
    "backfill.\n"
    "GPUPOOL_TLS_CA names the CA certificate for the scheduler.\n"
    "Exit status: 0: success; 1: rejected by the scheduler, health: not the leader; 2: usage error; 3: "
    "scheduler cannot be reached.\n"
    "docs/operations.md describes the commands and the JSON fields.";

std::string help_on_quotas() {
  std::vector<KeyExample> keys;
  for (const pool::QuotaKind& kind : pool::kQuotaKinds) keys.push_back({kind.word(), kind.example});
  return help_on_keys(keys);
}

PoolClient::Settings settings_of(const std::string& where, const std::string& token_file) {
  if (!token_file.empty() && !set_environment("GPUPOOL_TOKEN_FILE", token_file)) throw std::bad_alloc();
  auto address = pool::parse_pool_address(where.starts_with("pool://") ? where : "pool://" + where);
  if (!address) throw Failure(kExitUsage, "--scheduler: " + address.error().message);
  auto token = token_from_environment(
      [](const std::string& mistake) { std::fprintf(stderr, "pool-admin: %s\n", mistake.c_str()); });
  auto tls = tls_from_environment();
  if (const auto checked = pool::check_files(tls); !checked)
    throw Failure(kExitUsage, checked.error().message);
  return {std::move(*address), std::move(token), std::move(tls)};
}

}  // namespace

int run_for_pool(int count, char** words) {
  CLI::App app(kAbout, "pool-admin");
  app.footer(help_on_quotas() + "\n" + kNotes);
  app.set_version_flag("--version", std::string("pool-admin ") + kVersion);
  app.require_subcommand(1);
  app.fallthrough();  // allow options after the command
  std::string where, token_file;
  bool json = false;
  app.add_option("--scheduler", where, "HOST:PORT of the pool's scheduler; several separated by commas")
      ->envname("GPUPOOL_SCHEDULER")
      ->required();
  app.add_option("--token-file", token_file,
                 "a file with an operator's token [GPUPOOL_TOKEN_FILE, GPUPOOL_TOKEN]");
  app.add_flag("--json", json, "print JSON");

  std::function<Exit(PoolCommands&)> action;
  const auto command = [&](CLI::App& parent, const char* name, const char* about,
                           std::function<Exit(PoolCommands&)> run) {
    CLI::App* const added = parent.add_subcommand(name, about);
    added->callback([&action, run = std::move(run)] { action = run; });
    return added;
  };

  std::string node, gpu, tenant, id, reason;
  std::vector<std::string> changes, leases;
  std::optional<double> grace;
  bool evict = false;

  command(app, "health", "show whether the scheduler is the leader, and the pool's state",
          [](PoolCommands& pool) { return pool.health(); });
  command(app, "gpus", "show GPUs and their leased shares", [&](PoolCommands& pool) {
    return pool.gpus(node);
  })->add_option("--node", node, "only GPUs of this node");
  CLI::App* const leased = command(app, "leases", "show leases and their GPUs",
                                   [&](PoolCommands& pool) { return pool.leases(tenant, node); });
  leased->add_option("--tenant", tenant, "only leases of this tenant");
  leased->add_option("--node", node, "only leases on this node");
  command(app, "queue", "show waiting requests and their reasons", [&](PoolCommands& pool) {
    return pool.queue(tenant);
  })->add_option("--tenant", tenant, "only requests of this tenant");
  command(app, "tenants", "show tenants and their usage", [](PoolCommands& pool) { return pool.tenants(); });

  CLI::App* const nodes = app.add_subcommand("nodes", "show or change GPU hosts");
  nodes->callback([&action, nodes] {
    if (nodes->get_subcommands().empty()) action = [](PoolCommands& pool) { return pool.nodes(); };
  });
  command(*nodes, "remove", "remove a node that will not return; ends its leases",
          [&](PoolCommands& pool) { return pool.remove_node(node); })
      ->add_option("NODE", node)
      ->required();
  CLI::App* const trust = command(*nodes, "trust", "declare the owner of a GPU that several nodes report",
                                  [&](PoolCommands& pool) { return pool.trust_gpu(node, gpu); });
  trust->add_option("NODE", node)->required();
  trust->add_option("--gpu", gpu, "the GPU's UUID")->required();
  CLI::App* const drain = command(app, "drain", "stop placing leases on a node",
                                  [&](PoolCommands& pool) { return pool.drain(node, reason, evict, grace); });
  drain->add_option("NODE", node)->required();
  drain->add_option("--reason", reason, "shown to users");
  drain->add_flag("--evict", evict, "also end its leases");
  drain->add_option("--grace", grace, "grace period in seconds")->check(CLI::Range(0.0, 86'400.0));
  command(app, "undrain", "place leases again; also clears a fence",
          [&](PoolCommands& pool) { return pool.undrain(node); })
      ->add_option("NODE", node)
      ->required();

  CLI::App* const quota = app.add_subcommand("quota", "show or change quotas");
  quota->require_subcommand(1);
  command(*quota, "show", "show the quota of one tenant or of all", [&](PoolCommands& pool) {
    return pool.quotas(tenant);
  })->add_option("TENANT", tenant);
  CLI::App* const set = command(*quota, "set", "set and store a quota; it overrides the configuration",
                                [&](PoolCommands& pool) { return pool.set_quota(tenant, changes); });
  set->add_option("TENANT", tenant)->required();
  set->add_option("SETTING", changes, "KEY=VALUE, see below")->required();
  command(*quota, "clear", "remove the stored quota; the configured one applies again",
          [&](PoolCommands& pool) { return pool.clear_quota(tenant); })
      ->add_option("TENANT", tenant)
      ->required();

  CLI::App* const policy = app.add_subcommand("policy", "show or change the placement policy and timeouts");
  policy->require_subcommand(1);
  command(*policy, "show", "show the policy", [](PoolCommands& pool) { return pool.policy(); });
  command(*policy, "set", "set and store policy values",
          [&](PoolCommands& pool) { return pool.set_policy(changes); })
      ->add_option("SETTING", changes, "KEY=VALUE, see below")
      ->required();

  CLI::App* const end = command(app, "evict", "end leases",
                                [&](PoolCommands& pool) { return pool.evict(leases, reason, grace); });
  end->add_option("LEASE", leases, "as `leases` shows them")->required();
  end->add_option("--reason", reason, "reason shown to the clients");
  end->add_option("--grace", grace, "grace period in seconds")->check(CLI::Range(0.0, 86'400.0));
  command(app, "why", "explain why a request waits or a lease ended",
          [&](PoolCommands& pool) { return pool.why(id); })
      ->add_option("ID", id, "as `queue` and `leases` show them")
      ->required();

  double interval = 1;
  TopOptions top;
  std::optional<TopSignals> signals;
  CLI::App* const live =
      command(app, "top", "show everything, updated continuously; q quits", [&](PoolCommands& pool) {
        top.json = json;
        top.interval = std::chrono::milliseconds(static_cast<int64_t>(interval * 1000 + 0.5));
        return pool.top(*signals, top);
      });
  live->add_option("--interval", interval, "seconds between updates [1]")->check(CLI::Range(0.1, 10.0));
  live->add_option("--count", top.count,
                   "number of updates [0: unlimited]; 1: after --interval, because rates need two samples")
      ->check(CLI::Range(0, 1'000'000'000));

  if (count > 1 && std::string(words[1]) == kCompleteOption) {
    std::fputs(completions(app, {words + 2, words + count}).c_str(), stdout);
    return kExitGood;
  }
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const std::vector<std::string> unknown = app.remaining(true);
    if (!unknown.empty() && std::find(kCommandsOfPoold.begin(), kCommandsOfPoold.end(), unknown.front()) !=
                                kCommandsOfPoold.end()) {
      throw Failure(kExitUsage, "'" + unknown.front() +
                                    "' is a command for a poold on this host: omit --scheduler; if "
                                    "GPUPOOL_SCHEDULER is set, use --poold PORT");
    }
    throw Failure(kExitUsage, settings::describe_usage_error(app, error) +
                                  "; see pool-admin --scheduler HOST:PORT --help");
  }
  if (live->parsed()) signals.emplace();  // before gRPC starts threads
  PoolClient scheduler(settings_of(where, token_file));
  PoolCommands commands(scheduler, json);
  return action(commands);
}

}  // namespace gpupool::admin
