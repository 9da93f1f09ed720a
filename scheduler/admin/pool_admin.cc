// The command pool-admin: shows and changes the state of a poold on this host, or of a pool's scheduler
// (pool/command_line.h).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>

#include "common/settings/command_line.h"
#include "common/version.h"
#include "protocol/control/quota_kinds.h"
#include "scheduler/admin/commands.h"
#include "scheduler/admin/completion.h"
#include "scheduler/admin/pool/command_line.h"
#include "scheduler/admin/quota_words.h"
#include "scheduler/admin/top.h"

namespace {

using namespace gpupool::admin;

constexpr const char* kAbout =
    "pool-admin: shows the state of a poold on this host, changes its tenants' quotas, and ends sessions.\n"
    "Only poold's user and root can use it. With --scheduler HOST:PORT it administers a pool's scheduler "
    "instead; see\n"
    "pool-admin --scheduler HOST:PORT --help.";
constexpr const char* kNotes =
    "Exit status: 0: success; 1: rejected by poold (no such tenant or session, invalid quota), health: not "
    "ready, dump: the session's\n"
    "worker does not answer, migrate: the session has not migrated; 2: usage error; 3: poold cannot be "
    "reached. docs/operations.md describes the "
    "commands and the JSON fields.";

std::string names_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* const command : app.get_subcommands(nullptr))
    names += (names.empty() ? "" : ", ") + command->get_name();
  return names;
}

// Returns the first unknown word that is a command for a pool's scheduler; empty if there is none.
std::string command_of_pool(const CLI::App& app, bool quota) {
  const std::vector<std::string> unknown = app.remaining(true);
  if (quota) return !unknown.empty() && unknown.front() == "clear" ? "quota clear" : "";
  if (!app.get_subcommands().empty()) return "";
  const auto found =
      std::find_first_of(unknown.begin(), unknown.end(), kCommandsOfPool.begin(), kCommandsOfPool.end());
  return found == unknown.end() ? "" : *found;
}

int fail(int status, const std::string& why) {
  std::fprintf(stderr, "pool-admin: %s\n", why.c_str());
  return status;
}

// Prints the help that was asked for, or why the command line is wrong. Returns the exit status.
int fail_to_parse(const CLI::App& app, const CLI::App& quota, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  if (const std::string command = command_of_pool(app, quota.parsed()); !command.empty()) {
    return fail(kExitUsage,
                "'" + command +
                    "' is a command for a pool's scheduler: set --scheduler HOST:PORT or GPUPOOL_SCHEDULER");
  }
  const bool known_words = app.remaining(true).empty();
  if (known_words && quota.parsed() && quota.get_subcommands().empty())
    return fail(kExitUsage, "quota: missing subcommand: show or set");
  if (known_words && app.get_subcommands().empty())
    return fail(kExitUsage, std::string(error.what()) + "; commands: " + names_of(app));
  return fail(kExitUsage, gpupool::settings::describe_usage_error(app, error) + "; see pool-admin --help");
}

// Validates a session number. Returns an error text, or "". CLI11 itself would convert negative and too large
// numbers to others.
std::string is_session(const std::string& text) {
  uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size()
             ? ""
             : "'" + text + "' is not a session number";
}

// Returns true if --scheduler or GPUPOOL_SCHEDULER names a scheduler; --poold overrides the variable.
bool is_for_pool(int count, char** words) {
  const auto names = [&](const std::string& option) {
    return std::any_of(words + 1, words + count, [&](const std::string& word) {
      return word == option || word.starts_with(option + "=");
    });
  };
  const char* const scheduler = std::getenv("GPUPOOL_SCHEDULER");
  return names("--scheduler") || (scheduler && *scheduler && !names("--poold"));
}

std::string gpu_option_help() {
  return "limits of this GPU only (number or UUID): " +
         gpupool::quota::names_of_kinds(gpupool::quota::Spelling::word, /*only_per_gpu=*/true) +
         "; `default` resets them to those of every GPU";
}

struct MigrateOptions {
  std::string session, to;
  int timeout = 600;

  Exit run(PooldClient& poold, bool json) const {
    return migrate_session(poold, json, session, to, std::chrono::seconds(timeout));
  }
};

void add_migrate_options(CLI::App& command, MigrateOptions& options) {
  command.add_option("SESSION", options.session, "a number as `sessions` shows it")
      ->required()
      ->check(is_session);
  command
      .add_option("--to", options.to,
                  "the other server's address, as in GPUPOOL: tcp://HOST:PORT, tls://HOST:PORT")
      ->required();
  command.add_option("--timeout", options.timeout, "seconds to wait for the result [600]")
      ->check(CLI::Range(1, 600));
  command.footer(
      "The session's client opens a session with the other server, with its own token or lease, and "
      "continues\n"
      "there. The session must be able to resume (poold --resume-timeout). Exit status 1: it has not "
      "migrated,\n"
      "or the time is over; then the client may still migrate it.");
}

int run(int count, char** words) {
  CLI::App app(kAbout, "pool-admin");
  app.footer(quota_keys_help() + "\n" + kNotes);
  app.set_version_flag("--version", std::string("pool-admin ") + gpupool::kVersion);
  app.require_subcommand(1);
  app.fallthrough();  // allow --poold and --json after the command
  std::string where;
  bool json = false;
  app.add_option("--poold", where,
                 "admin socket unix:PATH, or the port of a poold on this host [the only one]")
      ->envname("GPUPOOL_ADMIN");
  app.add_flag("--json", json, "print JSON");

  std::function<Exit(PooldClient&)> action;
  const auto command = [&](CLI::App& parent, const char* name, const char* about,
                           std::function<Exit(PooldClient&)> run) {
    CLI::App* const added = parent.add_subcommand(name, about);
    added->callback([&action, run = std::move(run)] { action = run; });
    return added;
  };

  command(app, "gpus", "show GPUs, their memory and the shares that quotas allot",
          [&](PooldClient& poold) { return show_gpus(poold, json); });

  std::string tenant;
  command(app, "sessions", "show the running sessions", [&](PooldClient& poold) {
    return show_sessions(poold, json, tenant);
  })->add_option("--tenant", tenant, "only sessions of this tenant");

  command(app, "tenants", "show tenants and their usage since poold's start",
          [&](PooldClient& poold) { return show_tenants(poold, json); });

  CLI::App* const quota = app.add_subcommand("quota", "show or change quotas");
  quota->require_subcommand(1);
  command(*quota, "show", "show the quota of one tenant or of all", [&](PooldClient& poold) {
    return show_quotas(poold, json, tenant);
  })->add_option("TENANT", tenant);
  std::vector<std::string> changes;
  std::string gpu;
  CLI::App* const set =
      command(*quota, "set", "change a quota until poold reloads its configuration",
              [&](PooldClient& poold) { return set_quota(poold, json, tenant, gpu, changes); });
  set->add_option("TENANT", tenant)->required();
  set->add_option("SETTING", changes, "KEY=VALUE, see below")->required();
  set->add_option("--gpu", gpu, gpu_option_help());

  std::vector<std::string> sessions;
  std::string reason;
  CLI::App* const kill = command(app, "kill", "end sessions", [&](PooldClient& poold) {
    return kill_sessions(poold, json, sessions, reason);
  });
  kill->add_option("SESSION", sessions, "numbers as `sessions` shows them")->required()->check(is_session);
  kill->add_option("--reason", reason, "reason shown to the programs");

  std::string dumped;
  command(app, "dump", "show what a session is executing and waiting for",
          [&](PooldClient& poold) { return show_dump(poold, json, dumped); })
      ->add_option("SESSION", dumped, "a number as `sessions` shows it")
      ->required()
      ->check(is_session);

  MigrateOptions migration;
  add_migrate_options(*command(app, "migrate", "move a session to another server while its program runs",
                               [&](PooldClient& poold) { return migration.run(poold, json); }),
                      migration);

  double interval = 1;
  TopOptions top;
  std::optional<TopSignals> top_signals;
  CLI::App* const top_command =
      command(app, "top", "show everything, updated continuously; q quits", [&](PooldClient& poold) {
        top.json = json;
        top.interval = std::chrono::milliseconds(static_cast<int64_t>(interval * 1000 + 0.5));
        run_top(poold, *top_signals, top);
        return kExitGood;
      });
  top_command->add_option("--interval", interval, "seconds between updates [1]")
      ->check(CLI::Range(0.1, 10.0));
  top_command
      ->add_option("--count", top.count,
                   "number of updates [0: unlimited]; 1: after --interval, because rates need two samples")
      ->check(CLI::Range(0, 1'000'000'000));

  command(app, "health", "show whether poold accepts sessions, and its state",
          [&](PooldClient& poold) { return show_health(poold, json); });

  std::string shell;
  CLI::App* const completion = app.add_subcommand("completion", "print a shell completion script, for eval");
  completion->add_option("SHELL", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  if (count > 1 && std::string(words[1]) == kCompleteOption) {
    std::fputs(completions(app, {words + 2, words + count}).c_str(), stdout);
    return kExitGood;
  }

  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return fail_to_parse(app, *quota, error);
  }
  if (completion->parsed()) return std::fputs(completion_script(shell).c_str(), stdout), kExitGood;
  if (top_command->parsed()) top_signals.emplace();  // before gRPC starts threads
  PooldClient poold(find_socket(where));
  return action(poold);
}

}  // namespace

int main(int count, char** words) {
  try {
    return is_for_pool(count, words) ? run_for_pool(count, words) : run(count, words);
  } catch (const Failure& failure) {
    return fail(failure.status, failure.what());
  } catch (const std::exception& failure) {
    return fail(kExitUnreachable, failure.what());
  }
}
