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
    "worker does not answer, migrate, suspend, resume: the session has not; 2: usage error; 3: poold cannot "
    "be "
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

// The commands and options for a poold, and the values that parsing gives them.
class CommandLine {
 public:
  CommandLine() : app_(kAbout, "pool-admin") {
    app_.footer(quota_keys_help() + "\n" + kNotes);
    app_.set_version_flag("--version", std::string("pool-admin ") + gpupool::kVersion);
    app_.require_subcommand(1);
    app_.fallthrough();  // allow --poold and --json after the command
    app_.add_option("--poold", where_,
                    "admin socket unix:PATH, or the port of a poold on this host [the only one]")
        ->envname("GPUPOOL_ADMIN");
    app_.add_flag("--json", json_, "print JSON");
    // In the order of --help:
    add_views();
    add_quota_commands();
    add_session_commands();
    add_migrate();
    add_upgrade();
    add_suspensions();
    add_top();
    add(app_, "health", "show whether poold accepts sessions, and its state",
        [this](PooldClient& poold) { return show_health(poold, json_); });
    completion_ = app_.add_subcommand("completion", "print a shell completion script, for eval");
    completion_->add_option("SHELL", shell_, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  }

  // Returns the exit status; throws Failure.
  int run(int count, char** words);

 private:
  using Action = std::function<Exit(PooldClient&)>;

  CLI::App* add(CLI::App& parent, const char* name, const char* about, Action run) {
    CLI::App* const added = parent.add_subcommand(name, about);
    added->callback([this, run = std::move(run)] { action_ = run; });
    return added;
  }
  void add_views();
  void add_quota_commands();
  void add_session_commands();
  void add_migrate();
  void add_upgrade();
  void add_suspensions();
  void add_top();
  void add_timeout(CLI::App* command) {
    command->add_option("--timeout", timeout_, "seconds to wait for the result [600]")
        ->check(CLI::Range(1, 600));
  }
  int reject(const CLI::ParseError& error);

  CLI::App app_;
  Action action_;
  CLI::App* quota_ = nullptr;
  CLI::App* top_command_ = nullptr;
  CLI::App* completion_ = nullptr;
  std::string where_, tenant_, gpu_, reason_, dumped_, migrated_, to_, suspended_, shell_;
  std::string where_suspended_ = "memory";
  bool encrypts_ = false;
  Resumption resumption_;
  int timeout_ = 600;  // seconds
  std::vector<std::string> changes_, sessions_;
  bool json_ = false, move_workers_ = false;
  double interval_ = 1;
  TopOptions top_;
  std::optional<TopSignals> top_signals_;
};

void CommandLine::add_views() {
  add(app_, "gpus", "show GPUs, their memory and the shares that quotas allot",
      [this](PooldClient& poold) { return show_gpus(poold, json_); });
  add(app_, "sessions", "show the running sessions", [this](PooldClient& poold) {
    return show_sessions(poold, json_, tenant_);
  })->add_option("--tenant", tenant_, "only sessions of this tenant");
  add(app_, "tenants", "show tenants and their usage since poold's start",
      [this](PooldClient& poold) { return show_tenants(poold, json_); });
}

void CommandLine::add_quota_commands() {
  quota_ = app_.add_subcommand("quota", "show or change quotas");
  quota_->require_subcommand(1);
  add(*quota_, "show", "show the quota of one tenant or of all", [this](PooldClient& poold) {
    return show_quotas(poold, json_, tenant_);
  })->add_option("TENANT", tenant_);
  CLI::App* const set =
      add(*quota_, "set", "change a quota until poold reloads its configuration",
          [this](PooldClient& poold) { return set_quota(poold, json_, tenant_, gpu_, changes_); });
  set->add_option("TENANT", tenant_)->required();
  set->add_option("SETTING", changes_, "KEY=VALUE, see below")->required();
  set->add_option("--gpu", gpu_, gpu_option_help());
}

void CommandLine::add_session_commands() {
  CLI::App* const kill = add(app_, "kill", "end sessions", [this](PooldClient& poold) {
    return kill_sessions(poold, json_, sessions_, reason_);
  });
  kill->add_option("SESSION", sessions_, "numbers as `sessions` shows them")->required()->check(is_session);
  kill->add_option("--reason", reason_, "reason shown to the programs");
  add(app_, "dump", "show what a session is executing and waiting for",
      [this](PooldClient& poold) { return show_dump(poold, json_, dumped_); })
      ->add_option("SESSION", dumped_, "a number as `sessions` shows it")
      ->required()
      ->check(is_session);
}

void CommandLine::add_migrate() {
  CLI::App* const migrate = add(
      app_, "migrate", "move a session to another server while its program runs", [this](PooldClient& poold) {
        return migrate_session(poold, json_, migrated_, to_, std::chrono::seconds(timeout_));
      });
  migrate->add_option("SESSION", migrated_, "a number as `sessions` shows it")->required()->check(is_session);
  migrate->add_option("--to", to_, "the other server's address, as in GPUPOOL: tcp://HOST:PORT")->required();
  add_timeout(migrate);
  migrate->footer(
      "The session's client opens a session with the other server, with its own token or lease, and "
      "continues\n"
      "there. The session must be able to resume (poold --resume-timeout). Exit status 1: it has not "
      "migrated,\n"
      "or the time is over; then the client may still migrate it.");
}

void CommandLine::add_upgrade() {
  CLI::App* const upgrade =
      add(app_, "upgrade", "replace poold's program by the installed one while sessions run",
          [this](PooldClient& poold) { return upgrade_poold(poold, json_, move_workers_); });
  upgrade->add_flag("--move-workers", move_workers_,
                    "then move sessions to workers of the new program, one at a time");
  upgrade->footer(
      "The installed program first checks that it can take over; if not, nothing changes (exit status 1).\n"
      "Workers that serve a session keep their program until the session ends or moves. A session that "
      "moves\n"
      "needs memory, and a session slot, twice for a moment. Exit status 1 also if a session has not moved.");
}

void CommandLine::add_suspensions() {
  CLI::App* const suspend =
      add(app_, "suspend", "move a session to host memory or disk, so that it uses no GPU",
          [this](PooldClient& poold) {
            return suspend_session(poold, json_, suspended_, where_suspended_ == "disk", encrypts_,
                                   std::chrono::seconds(timeout_));
          });
  suspend->add_option("SESSION", suspended_, "a number as `sessions` shows it")
      ->required()
      ->check(is_session);
  suspend->add_option("--to", where_suspended_, "memory or disk, as poold's options allow [memory]")
      ->check(CLI::IsMember({"memory", "disk"}));
  suspend->add_flag("--encrypt", encrypts_, "encrypt the file with poold's --suspended-key");
  add_timeout(suspend);
  suspend->footer(
      "The program keeps its session: its CUDA calls wait until `resume`. Exit status 1: the session goes "
      "on,\n"
      "or the time is over; then its client may still suspend it.");
  CLI::App* const resume = add(app_, "resume", "resume a suspended session", [this](PooldClient& poold) {
    return resume_session(poold, json_, resumption_, std::chrono::seconds(timeout_));
  });
  auto* const session = resume->add_option("SESSION", resumption_.session, "a number as `sessions` shows it")
                            ->check(is_session);
  resume
      ->add_option("--at", resumption_.at,
                   "address of another poold, which was given the file: tcp://HOST:PORT")
      ->needs(session);
  auto* const file = resume->add_option("--file", resumption_.file,
                                        "file of another poold's session, whose client comes here");
  file->excludes(session);
  resume->require_option(1, 0);
  add_timeout(resume);
  resume->footer(
      "To resume on another host, first give its poold the file (resume --file PATH), then send the client\n"
      "there (resume SESSION --at tcp://HOST:PORT at the first poold). Exit status 1: it stays suspended.");
}

void CommandLine::add_top() {
  top_command_ =
      add(app_, "top", "show everything, updated continuously; q quits", [this](PooldClient& poold) {
        top_.json = json_;
        top_.interval = std::chrono::milliseconds(static_cast<int64_t>(interval_ * 1000 + 0.5));
        run_top(poold, *top_signals_, top_);
        return kExitGood;
      });
  top_command_->add_option("--interval", interval_, "seconds between updates [1]")
      ->check(CLI::Range(0.1, 10.0));
  top_command_
      ->add_option("--count", top_.count,
                   "number of updates [0: unlimited]; 1: after --interval, because rates need two samples")
      ->check(CLI::Range(0, 1'000'000'000));
}

int CommandLine::reject(const CLI::ParseError& error) {
  if (const std::string command = command_of_pool(app_, quota_->parsed()); !command.empty()) {
    return fail(kExitUsage,
                "'" + command +
                    "' is a command for a pool's scheduler: set --scheduler HOST:PORT or GPUPOOL_SCHEDULER");
  }
  const bool known_words = app_.remaining(true).empty();
  if (known_words && quota_->parsed() && quota_->get_subcommands().empty())
    return fail(kExitUsage, "quota: missing subcommand: show or set");
  if (known_words && app_.get_subcommands().empty())
    return fail(kExitUsage, std::string(error.what()) + "; commands: " + names_of(app_));
  return fail(kExitUsage, gpupool::settings::describe_usage_error(app_, error) + "; see pool-admin --help");
}

int CommandLine::run(int count, char** words) {
  if (count > 1 && std::string(words[1]) == kCompleteOption) {
    std::fputs(completions(app_, {words + 2, words + count}).c_str(), stdout);
    return kExitGood;
  }
  try {
    app_.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app_.exit(error) : reject(error);
  }
  if (completion_->parsed()) return std::fputs(completion_script(shell_).c_str(), stdout), kExitGood;
  if (top_command_->parsed()) top_signals_.emplace();  // before gRPC starts threads
  PooldClient poold(find_socket(where_));
  return action_(poold);
}

}  // namespace

int main(int count, char** words) {
  try {
    return is_for_pool(count, words) ? run_for_pool(count, words) : CommandLine().run(count, words);
  } catch (const Failure& failure) {
    return fail(failure.status, failure.what());
  } catch (const std::exception& failure) {
    return fail(kExitUnreachable, failure.what());
  }
}
