#include "scheduler/admin/pool/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <new>
#include <string_view>
#include <vector>

#include "common/settings/command_line.h"
#include "common/version.h"
#include "protocol/control/pool_policy_kinds.h"
#include "protocol/control/pool_quota_kinds.h"
#include "protocol/environment.h"
#include "protocol/scheduler/channel.h"
#include "scheduler/admin/completion.h"
#include "scheduler/admin/pool/commands.h"
#include "scheduler/admin/pool/describe.h"
#include "scheduler/admin/quota_words.h"

namespace gpupool::admin {
namespace {

constexpr const char* kAbout =
    "pool-admin --scheduler: shows the state of a pool of GPU hosts, and changes quotas, the policy, nodes "
    "and leases.\n"
    "It authenticates with an operator's token. Without --scheduler and GPUPOOL_SCHEDULER it administers a "
    "poold on this host.";
constexpr const char* kNotes =
    "GPUPOOL_TLS_CA names the CA certificate for the scheduler.\n"
    "Exit status: 0: success; 1: rejected by the scheduler, health: not the leader; 2: usage error; 3: "
    "scheduler cannot be reached.\n"
    "docs/operations.md describes the commands and the JSON fields.";

std::string help_on_quotas() {
  std::vector<KeyExample> keys;
  for (const pool::QuotaKind& kind : pool::kQuotaKinds) keys.push_back({kind.word(), kind.example});
  return help_on_keys(keys);
}

std::string help_on_policy() {
  size_t width = 0;
  for (const pool::PolicyKind& kind : pool::kPolicyKinds)
    width = std::max(width, std::string_view(kind.key).size());
  const auto line = [&](std::string key, const std::string& help, const std::string& initial) {
    key.resize(width + 2, ' ');
    return "\n  " + key + help + " [" + initial + "]";
  };
  std::string text = "Policy keys:" + line("placement", "chooses the GPUs of a request", "fragmentation");
  for (const pool::PolicyKind& kind : pool::kPolicyKinds)
    text += line(kind.key, kind.help, policy_value_text(kind, kind.initial));
  return text;
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

// The commands and options, and the values that parsing gives them.
class CommandLine {
 public:
  CommandLine() : app_(kAbout, "pool-admin") {
    app_.footer(help_on_quotas() + "\n" + help_on_policy() + "\n" + kNotes);
    app_.set_version_flag("--version", std::string("pool-admin ") + kVersion);
    app_.require_subcommand(1);
    app_.fallthrough();  // allow options after the command
    app_.add_option("--scheduler", where_, "HOST:PORT of the pool's scheduler; several separated by commas")
        ->envname("GPUPOOL_SCHEDULER")
        ->required();
    app_.add_option("--token-file", token_file_,
                    "a file with an operator's token [GPUPOOL_TOKEN_FILE, GPUPOOL_TOKEN]");
    app_.add_flag("--json", json_, "print JSON");
    add_views();
    add_usage();
    add_node_commands();
    add_quota_commands();
    add_policy_commands();
    add_lease_commands();
    add_top();
  }

  // Returns the exit status; throws Failure.
  int run(int count, char** words);

 private:
  using Action = std::function<Exit(PoolCommands&)>;

  CLI::App* add(CLI::App& parent, const char* name, const char* about, Action run) {
    CLI::App* const added = parent.add_subcommand(name, about);
    added->callback([this, run = std::move(run)] { action_ = run; });
    return added;
  }
  void add_grace(CLI::App& command) {
    command.add_option("--grace", grace_, "grace period in seconds")->check(CLI::Range(0.0, 86'400.0));
  }
  void add_views();
  void add_usage();
  void add_node_commands();
  void add_quota_commands();
  void add_policy_commands();
  void add_lease_commands();
  void add_top();
  [[noreturn]] void reject(const CLI::ParseError& error);

  CLI::App app_;
  Action action_;
  CLI::App* top_command_ = nullptr;
  std::string where_, token_file_, node_, gpu_, tenant_, id_, reason_, from_, to_;
  std::vector<std::string> changes_, leases_;
  std::optional<double> grace_;
  bool json_ = false, evict_ = false, move_ = false;
  double interval_ = 1;
  TopOptions top_;
  UsageOptions usage_;
  std::optional<TopSignals> signals_;
};

void CommandLine::add_views() {
  add(app_, "health", "show whether the scheduler is the leader, and the pool's state",
      [](PoolCommands& pool) { return pool.health(); });
  add(app_, "gpus", "show GPUs and their leased shares", [this](PoolCommands& pool) {
    return pool.gpus(node_);
  })->add_option("--node", node_, "only GPUs of this node");
  CLI::App* const leased = add(app_, "leases", "show leases and their GPUs",
                               [this](PoolCommands& pool) { return pool.leases(tenant_, node_); });
  leased->add_option("--tenant", tenant_, "only leases of this tenant");
  leased->add_option("--node", node_, "only leases on this node");
  add(app_, "queue", "show waiting requests and their reasons", [this](PoolCommands& pool) {
    return pool.queue(tenant_);
  })->add_option("--tenant", tenant_, "only requests of this tenant");
  add(app_, "tenants", "show tenants and their usage", [](PoolCommands& pool) { return pool.tenants(); });
}

void CommandLine::add_usage() {
  CLI::App* const usage = add(app_, "usage", "show what leases have used, for accounting",
                              [this](PoolCommands& pool) { return pool.usage(usage_); });
  usage->add_option("--from", usage_.from, "date (UTC) or time [begin of this month]");
  usage->add_option("--to", usage_.to, "date (UTC) or time before which to count [now]");
  usage
      ->add_option(
          "--by", usage_.by,
          "dimensions: tenant, user, job, label:KEY, model, node, program, lease, hour, day [tenant]")
      ->delimiter(',');
  usage->add_option("--tenant", usage_.tenant, "only leases of this tenant");
  CLI::Option* const csv = usage->add_flag("--csv", usage_.csv, "print comma-separated values");
  usage->add_flag("--opencost", usage_.opencost, "print OpenCost's custom costs, per day")->excludes(csv);
}

void CommandLine::add_node_commands() {
  CLI::App* const nodes = app_.add_subcommand("nodes", "show or change GPU hosts");
  nodes->callback([this, nodes] {
    if (nodes->get_subcommands().empty()) action_ = [](PoolCommands& pool) { return pool.nodes(); };
  });
  add(*nodes, "remove", "remove a node that will not return; ends its leases",
      [this](PoolCommands& pool) { return pool.remove_node(node_); })
      ->add_option("NODE", node_)
      ->required();
  CLI::App* const trust = add(*nodes, "trust", "declare the owner of a GPU that several nodes report",
                              [this](PoolCommands& pool) { return pool.trust_gpu(node_, gpu_); });
  trust->add_option("NODE", node_)->required();
  trust->add_option("--gpu", gpu_, "the GPU's UUID")->required();
  CLI::App* const drain = add(app_, "drain", "stop placing leases on a node", [this](PoolCommands& pool) {
    return pool.drain(node_, reason_, {.move = move_, .evict = evict_, .grace_seconds = grace_});
  });
  drain->add_option("NODE", node_)->required();
  drain->add_option("--reason", reason_, "shown to users");
  drain->add_flag("--move", move_, "also move its leases to other nodes, as soon as there is room");
  drain->add_flag("--evict", evict_,
                  "also end its leases; with --move: those that are still there after --grace");
  add_grace(*drain);
  add(app_, "undrain", "place leases again; also clears a fence",
      [this](PoolCommands& pool) { return pool.undrain(node_); })
      ->add_option("NODE", node_)
      ->required();
}

void CommandLine::add_quota_commands() {
  CLI::App* const quota = app_.add_subcommand("quota", "show or change quotas");
  quota->require_subcommand(1);
  add(*quota, "show", "show the quota of one tenant or of all", [this](PoolCommands& pool) {
    return pool.quotas(tenant_);
  })->add_option("TENANT", tenant_);
  CLI::App* const set = add(*quota, "set", "set and store a quota; it overrides the configuration",
                            [this](PoolCommands& pool) { return pool.set_quota(tenant_, changes_); });
  set->add_option("TENANT", tenant_)->required();
  set->add_option("SETTING", changes_, "KEY=VALUE, see below")->required();
  add(*quota, "clear", "remove the stored quota; the configured one applies again",
      [this](PoolCommands& pool) { return pool.clear_quota(tenant_); })
      ->add_option("TENANT", tenant_)
      ->required();
}

void CommandLine::add_policy_commands() {
  CLI::App* const policy = app_.add_subcommand("policy", "show or change the placement policy and timeouts");
  policy->require_subcommand(1);
  add(*policy, "show", "show the policy", [](PoolCommands& pool) { return pool.policy(); });
  add(*policy, "set", "set and store policy values",
      [this](PoolCommands& pool) { return pool.set_policy(changes_); })
      ->add_option("SETTING", changes_, "KEY=VALUE, see below")
      ->required();
}

void CommandLine::add_lease_commands() {
  CLI::App* const end = add(app_, "evict", "end leases",
                            [this](PoolCommands& pool) { return pool.evict(leases_, reason_, grace_); });
  end->add_option("LEASE", leases_, "as `leases` shows them")->required();
  end->add_option("--reason", reason_, "reason shown to the clients");
  add_grace(*end);
  CLI::App* const move = add(app_, "move", "move a lease to another node while its programs run",
                             [this](PoolCommands& pool) { return pool.move(id_, from_, to_); });
  move->add_option("LEASE", id_, "as `leases` shows it")->required();
  move->add_option("--to", to_, "the node to move to [as placement decides]");
  move->add_option("--from", from_, "the node that it leaves, if it is on several");
  move->footer(
      "The command returns when the move has begun; `leases` and `why LEASE` show its progress. A move that "
      "takes\n"
      "longer than the policy `move` (60 s) is turned round.");
  CLI::App* const suspend =
      add(app_, "suspend", "suspend a lease, and give its GPUs to others until `resume`",
          [this](PoolCommands& pool) { return pool.suspend(id_); });
  suspend->add_option("LEASE", id_, "as `leases` shows it")->required();
  suspend->footer(
      "The command returns when that has begun; `leases` and `why LEASE` show its progress. If a session "
      "cannot "
      "be\n"
      "suspended, or not within the policy `suspend` (60 s), the lease goes on.");
  CLI::App* const resume = add(app_, "resume", "resume a suspended lease as soon as its GPUs have room",
                               [this](PoolCommands& pool) { return pool.resume(id_); });
  resume->add_option("LEASE", id_, "as `leases` shows it")->required();
  add(app_, "why", "explain why a request waits or a lease ended",
      [this](PoolCommands& pool) { return pool.why(id_); })
      ->add_option("ID", id_, "as `queue` and `leases` show them")
      ->required();
}

void CommandLine::add_top() {
  top_command_ =
      add(app_, "top", "show everything, updated continuously; q quits", [this](PoolCommands& pool) {
        top_.json = json_;
        top_.interval = std::chrono::milliseconds(static_cast<int64_t>(interval_ * 1000 + 0.5));
        return pool.top(*signals_, top_);
      });
  top_command_->add_option("--interval", interval_, "seconds between updates [1]")
      ->check(CLI::Range(0.1, 10.0));
  top_command_
      ->add_option("--count", top_.count,
                   "number of updates [0: unlimited]; 1: after --interval, because rates need two samples")
      ->check(CLI::Range(0, 1'000'000'000));
}

void CommandLine::reject(const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app_.remaining(true);
  if (!unknown.empty() && std::find(kCommandsOfPoold.begin(), kCommandsOfPoold.end(), unknown.front()) !=
                              kCommandsOfPoold.end()) {
    throw Failure(kExitUsage, "'" + unknown.front() +
                                  "' is a command for a poold on this host: omit --scheduler; if "
                                  "GPUPOOL_SCHEDULER is set, use --poold PORT");
  }
  throw Failure(kExitUsage, settings::describe_usage_error(app_, error) +
                                "; see pool-admin --scheduler HOST:PORT --help");
}

int CommandLine::run(int count, char** words) {
  if (count > 1 && std::string(words[1]) == kCompleteOption) {
    std::fputs(completions(app_, {words + 2, words + count}).c_str(), stdout);
    return kExitGood;
  }
  try {
    app_.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_.exit(error);
    reject(error);
  }
  if (top_command_->parsed()) signals_.emplace();  // before gRPC starts threads
  PoolClient scheduler(settings_of(where_, token_file_));
  PoolCommands commands(scheduler, json_);
  return action_(commands);
}

}  // namespace

int run_for_pool(int count, char** words) {
  return CommandLine().run(count, words);
}

}  // namespace gpupool::admin
