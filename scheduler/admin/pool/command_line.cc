#include "scheduler/admin/pool/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <new>

#include "client/lease_client/channel.h"
#include "client/settings.h"
#include "protocol/environment.h"
#include "scheduler/admin/completion.h"
#include "scheduler/admin/pool/commands.h"
#include "server/settings/command_line.h"
#include "server/version.h"

namespace gpupool::admin {
namespace {

constexpr const char* kAbout =
    "pool-admin --scheduler: shows what goes on in a pool of GPU hosts, changes what its tenants may use and where leases go.\n"
    "It shows the scheduler an operator's token. Without --scheduler and GPUPOOL_SCHEDULER it speaks to a poold of this host.";
constexpr const char* kNotes =
    "Quota keys: gpus (2, 0.5), memory (64GiB), leases, waiting, weight (1 to 1000), highest-priority (low, normal, high),\n"
    "bandwidth-to-device, bandwidth-to-host (1GB/s), sessions; unlimited or 0 takes a limit away.\n"
    "Policy keys: placement, preemption (on, off), grace, hold, token, heartbeat, node-lost (seconds), backfill.\n"
    "GPUPOOL_TLS_CA names the authority of the scheduler's certificate.\n"
    "Exit status: 0 done; 1 the scheduler refused, or, from health, does not lead; 2 wrong usage; 3 it cannot be reached.\n"
    "docs/operations.md tells how to use it and what the JSON fields mean.";

PoolClient::Settings settings_of(const std::string& where, const std::string& token_file) {
  if (!token_file.empty() && !set_environment("GPUPOOL_TOKEN_FILE", token_file)) throw std::bad_alloc();
  auto address = lease_client::parse_pool_address(where.starts_with("pool://") ? where : "pool://" + where);
  if (!address) throw Failure(kExitUsage, "--scheduler: " + address.error().message);
  client::Settings environment = client::settings_from_environment();
  if (const auto checked = lease_client::check_files(environment.tls); !checked) throw Failure(kExitUsage, checked.error().message);
  return {std::move(*address), std::move(environment.token), std::move(environment.tls)};
}

}  // namespace

int run_for_pool(int count, char** words) {
  CLI::App app(kAbout, "pool-admin");
  app.footer(kNotes);
  app.set_version_flag("--version", std::string("pool-admin ") + server::kVersion);
  app.require_subcommand(1);
  app.fallthrough();  // allow options after the command
  std::string where, token_file;
  bool json = false;
  app.add_option("--scheduler", where, "HOST:PORT of the pool's scheduler; several with commas")->envname("GPUPOOL_SCHEDULER")->required();
  app.add_option("--token-file", token_file, "a file with an operator's token [GPUPOOL_TOKEN_FILE, GPUPOOL_TOKEN]");
  app.add_flag("--json", json, "JSON for programs");

  std::function<Exit(PoolCommands&)> action;
  const auto command = [&](CLI::App& parent, const char* name, const char* about, std::function<Exit(PoolCommands&)> run) {
    CLI::App* const added = parent.add_subcommand(name, about);
    added->callback([&action, run = std::move(run)] { action = run; });
    return added;
  };

  std::string node, gpu, tenant, id, reason;
  std::vector<std::string> changes, leases;
  std::optional<double> grace;
  bool evict = false;

  command(app, "health", "whether the scheduler leads, and how the pool is", [](PoolCommands& pool) { return pool.health(); });
  command(app, "gpus", "the GPUs, and how much of them is leased", [&](PoolCommands& pool) { return pool.gpus(node); })->add_option("--node", node, "only this node's");
  CLI::App* const leased = command(app, "leases", "who has which GPUs", [&](PoolCommands& pool) { return pool.leases(tenant, node); });
  leased->add_option("--tenant", tenant, "only this tenant's");
  leased->add_option("--node", node, "only those on this node");
  command(app, "queue", "who waits, and what for", [&](PoolCommands& pool) { return pool.queue(tenant); })->add_option("--tenant", tenant, "only this tenant's");
  command(app, "tenants", "the tenants, and what they have of the pool", [](PoolCommands& pool) { return pool.tenants(); });

  CLI::App* const nodes = app.add_subcommand("nodes", "the GPU hosts");
  nodes->callback([&action, nodes] {
    if (nodes->get_subcommands().empty()) action = [](PoolCommands& pool) { return pool.nodes(); };
  });
  command(*nodes, "remove", "forget one that will not come back; its leases are over", [&](PoolCommands& pool) { return pool.remove_node(node); })
      ->add_option("NODE", node)
      ->required();
  CLI::App* const trust = command(*nodes, "trust", "say that a GPU is this node's, where several nodes report it", [&](PoolCommands& pool) { return pool.trust_gpu(node, gpu); });
  trust->add_option("NODE", node)->required();
  trust->add_option("--gpu", gpu, "its UUID")->required();
  CLI::App* const drain = command(app, "drain", "no new leases on a node", [&](PoolCommands& pool) { return pool.drain(node, reason, evict, grace); });
  drain->add_option("NODE", node)->required();
  drain->add_option("--reason", reason, "for people");
  drain->add_flag("--evict", evict, "end its leases as well");
  drain->add_option("--grace", grace, "seconds that they have")->check(CLI::Range(0.0, 86'400.0));
  command(app, "undrain", "leases again; ends a fence, too", [&](PoolCommands& pool) { return pool.undrain(node); })->add_option("NODE", node)->required();

  CLI::App* const quota = app.add_subcommand("quota", "what tenants may have at once");
  quota->require_subcommand(1);
  command(*quota, "show", "of one tenant, or of all", [&](PoolCommands& pool) { return pool.quotas(tenant); })->add_option("TENANT", tenant);
  CLI::App* const set = command(*quota, "set", "change and store it; it wins over the configuration", [&](PoolCommands& pool) { return pool.set_quota(tenant, changes); });
  set->add_option("TENANT", tenant)->required();
  set->add_option("SETTING", changes, "KEY=VALUE, see below")->required();
  command(*quota, "clear", "back to the configuration", [&](PoolCommands& pool) { return pool.clear_quota(tenant); })->add_option("TENANT", tenant)->required();

  CLI::App* const policy = app.add_subcommand("policy", "how leases are placed, and the pool's times");
  policy->require_subcommand(1);
  command(*policy, "show", "all of it", [](PoolCommands& pool) { return pool.policy(); });
  command(*policy, "set", "change and store it", [&](PoolCommands& pool) { return pool.set_policy(changes); })
      ->add_option("SETTING", changes, "KEY=VALUE, see below")
      ->required();

  CLI::App* const end = command(app, "evict", "end leases", [&](PoolCommands& pool) { return pool.evict(leases, reason, grace); });
  end->add_option("LEASE", leases, "as `leases` shows them")->required();
  end->add_option("--reason", reason, "what their holders are told");
  end->add_option("--grace", grace, "seconds that they have")->check(CLI::Range(0.0, 86'400.0));
  command(app, "why", "what a request waits for, or why a lease ends", [&](PoolCommands& pool) { return pool.why(id); })
      ->add_option("ID", id, "as `queue` and `leases` show them")
      ->required();

  double interval = 1;
  TopOptions top;
  std::optional<TopSignals> signals;
  CLI::App* const live = command(app, "top", "all of it, again and again; q ends it", [&](PoolCommands& pool) {
    top.json = json;
    top.interval = std::chrono::milliseconds(static_cast<int64_t>(interval * 1000 + 0.5));
    return pool.top(*signals, top);
  });
  live->add_option("--interval", interval, "seconds between pictures [1]")->check(CLI::Range(0.1, 10.0));
  live->add_option("--count", top.count, "end after so many [0: never]; 1: after --interval, since rates need two samples")->check(CLI::Range(0, 1'000'000'000));

  if (count > 1 && std::string(words[1]) == kCompleteOption) {
    std::fputs(completions(app, {words + 2, words + count}).c_str(), stdout);
    return kExitGood;
  }
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const std::vector<std::string> unknown = app.remaining(true);
    if (!unknown.empty() && std::find(kCommandsOfPoold.begin(), kCommandsOfPoold.end(), unknown.front()) != kCommandsOfPoold.end()) {
      throw Failure(kExitUsage, "'" + unknown.front() + "' is a command for a poold of this host: leave --scheduler out, and where GPUPOOL_SCHEDULER is set name the poold with --poold PORT");
    }
    throw Failure(kExitUsage, settings::describe_mistake(app, error) + "; see pool-admin --scheduler HOST:PORT --help");
  }
  if (live->parsed()) signals.emplace();  // before gRPC starts threads
  PoolClient scheduler(settings_of(where, token_file));
  PoolCommands commands(scheduler, json);
  return action(commands);
}

}  // namespace gpupool::admin
