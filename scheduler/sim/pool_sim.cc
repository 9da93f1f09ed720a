// The command pool-sim: simulates placement policies on a cluster and tasks from files, or on synthetic ones.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>

#include "common/settings/command_line.h"
#include "common/version.h"
#include "scheduler/sim/report.h"
#include "scheduler/sim/synthetic.h"

namespace {

using namespace gpupool;
using namespace gpupool::sim;

constexpr const char* kAbout =
    "pool-sim: simulates placing the tasks of a trace on a cluster, with pool-scheduler's placement "
    "library.\n"
    "By default tasks arrive in random order until 130 % of the cluster's GPUs are asked for, and nothing "
    "departs; with\n"
    "--replay they arrive and depart at their own times.";
constexpr const char* kNotes =
    "Exit status: 0: success; 1: a file cannot be read or is invalid; 2: usage error. docs/placement.md "
    "describes files and figures.";

enum Exit { kGood = 0, kBadFile = 1, kUsage = 2 };

struct Options {
  std::string nodes, tasks, mode = "local", json, plot;
  std::vector<std::string> policies = {"fragmentation"};
  uint32_t synthetic = 0;
  uint32_t seeds = 10;
  uint64_t seed = 1;
  bool replay = false;
  double load = 1;
  MoveOptions moves;
  double moved_gib = 1024, move_rate = 1, gpu_gib = 16;
  double offered = 0, mean_hours = 1, most_hours = 24;
  Draw draw;
};

int fail(Exit status, const std::string& why) {
  std::fprintf(stderr, "pool-sim: %s\n", why.c_str());
  return status;
}

template <class T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

void write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  std::ofstream out(path);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

int simulate(const Options& options) {
  std::vector<placement::NodeSpec> nodes;
  std::vector<Task> tasks;
  nodes = options.nodes.empty() ? synthetic_nodes(options.synthetic)
                                : value_of(nodes_of(value_of(Csv::read(options.nodes))));
  Subject subject{.nodes = options.nodes.empty() ? "synthetic" : options.nodes,
                  .tasks = options.tasks.empty() ? "synthetic" : options.tasks,
                  .node_count = nodes.size(),
                  .mode = *mode_named(options.mode),
                  .load = options.load};
  for (const placement::NodeSpec& node : nodes) subject.gpu_count += static_cast<uint64_t>(node.gpus);
  constexpr uint32_t kTasksPerGpu = 2;  // more than fit into the cluster
  tasks = options.tasks.empty()
              ? synthetic_tasks(static_cast<uint32_t>(subject.gpu_count) * kTasksPerGpu, options.seed)
              : value_of(tasks_of(value_of(Csv::read(options.tasks))));
  if (options.offered > 0) tasks = drawn_tasks(tasks, options.draw, subject.gpu_count, options.seed);
  subject.task_count = tasks.size();
  if (subject.gpu_count == 0) throw std::runtime_error(subject.nodes + ": no node has a GPU");
  if (tasks.empty()) throw std::runtime_error(subject.tasks + ": no tasks");

  std::vector<Run> runs;
  for (const std::string& name : options.policies) {
    Run run{.policy = *placement::policy_named(name), .outcomes = {}, .replayed = {}};
    const Experiment experiment{.nodes = &nodes, .tasks = &tasks, .mode = subject.mode, .policy = run.policy};
    if (options.replay) {
      MoveOptions moves = options.moves;
      moves.defragment = false;
      const double warm_up = options.offered > 0 ? 0.5 : 0;
      run.replayed.push_back(replay(experiment, options.load, options.seed, moves, warm_up));
      if (options.moves.defragment) {
        runs.push_back(run);
        run.replayed = {replay(experiment, options.load, options.seed, options.moves, warm_up)};
      }
    } else {
      for (uint32_t i = 0; i < options.seeds; ++i)
        run.outcomes.push_back(sim::run(experiment, options.seed + i));
    }
    runs.push_back(std::move(run));
  }
  if (options.json != "-") std::fputs(text_of(subject, runs).c_str(), stdout);
  if (!options.json.empty()) write_text(options.json, json_of(subject, runs).dump(2) + "\n");
  if (!options.plot.empty()) plot::write_svg(options.plot, plot_of(subject, runs));
  return kGood;
}

// Options of --replay; the defaults are those of pool-scheduler's policy.
void add_move_options(CLI::App& app, Options& options) {
  MoveOptions& moves = options.moves;
  app.add_option(
         "--offered", options.offered,
         "with --replay: draw tasks at random that arrive at random times and ask for this percentage of the "
         "cluster's GPUs on average; measure the second half of them")
      ->check(CLI::Range(1.0, 1000.0));
  app.add_option("--draws", options.draw.count, "with --offered: number of tasks [20000]")
      ->check(CLI::Range(2, 10'000'000));
  app.add_option("--mean-hours", options.mean_hours, "with --offered: duration of tasks without times [1]")
      ->check(CLI::Range(0.01, 1e4));
  app.add_option("--most-hours", options.most_hours, "with --offered: longer tasks are cut [24]")
      ->check(CLI::Range(0.01, 1e6));
  app.add_flag("--reserve", moves.reserve,
               "with --replay: hold GPUs for the first task that waits, as pool-scheduler does");
  app.add_flag("--defragment", moves.defragment,
               "with --replay: also simulate with moves of running tasks that make room for the first one");
  app.add_option("--moves-per-hour", moves.moves_per_hour, "limit of these moves; 0: none [60]");
  app.add_option("--moved-gib-per-hour", options.moved_gib, "limit of the memory moved; 0: none [1024]")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--moves-at-once", moves.at_once, "limit of tasks moving at the same time; 0: none [4]");
  app.add_option("--move-rate", options.move_rate, "speed of a move in GB/s [1]")
      ->check(CLI::Range(1e-3, 1e3));
  app.add_option("--move-silence", moves.silence, "seconds for which a task stands still for a move [2]")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--longest-move", moves.longest,
                 "tasks that take more seconds do not move; 0: no limit [60]")
      ->check(CLI::Range(0.0, 86'400.0));
  app.add_option("--gpu-memory", options.gpu_gib, "GiB of a GPU where the file of nodes has no size [16]")
      ->check(CLI::Range(1.0, 1e4));
}

int run(int count, char** words) {
  CLI::App app(kAbout, "pool-sim");
  app.footer(kNotes);
  app.set_version_flag("--version", std::string("pool-sim ") + kVersion);
  Options options;
  const auto is_policy = [](const std::string& name) {
    return placement::policy_named(name)
               ? ""
               : "unknown policy '" + name + "'; valid: " + placement::policy_names();
  };
  auto* const nodes = app.add_option("--nodes", options.nodes, "the cluster, a CSV file");
  app.add_option("--synthetic", options.synthetic,
                 "instead of --nodes: number of synthetic nodes with eight GPUs; without --tasks also "
                 "synthetic tasks")
      ->check(CLI::Range(1, 1'000'000))
      ->excludes(nodes);
  app.add_option("--tasks", options.tasks, "the tasks, a CSV file");
  app.add_option("--mode", options.mode,
                 "local: a task's CPUs, memory and GPUs are on one node; pool: only its GPUs are placed, "
                 "possibly on several nodes; one-host: only its GPUs, on one node [local]")
      ->check(CLI::IsMember({"local", "pool", "one-host"}));
  app.add_option("--policy", options.policies,
                 "one or several of " + placement::policy_names() + " [fragmentation]")
      ->check(is_policy)
      ->delimiter(',');
  app.add_option("--seeds", options.seeds, "number of random orders [10]")->check(CLI::Range(1, 10'000));
  app.add_option("--seed", options.seed, "first seed [1]");
  app.add_flag("--replay", options.replay, "simulate arrivals and departures at the trace's times");
  app.add_option("--load", options.load, "with --replay: factor that accelerates arrivals [1]")
      ->check(CLI::Range(0.001, 1e6));
  add_move_options(app, options);
  app.add_option("--json", options.json, "write all figures to this file as JSON; - for stdout");
  app.add_option("--plot", options.plot, "write a plot to this file (SVG)");
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return fail(kUsage, settings::describe_usage_error(app, error) + "; see pool-sim --help");
  }
  constexpr double kGiB = 1 << 30;
  options.draw.offered = options.offered / 100;
  options.draw.mean_seconds = options.mean_hours * 3600;
  options.draw.most_seconds = options.most_hours * 3600;
  options.moves.bytes_per_hour = static_cast<uint64_t>(options.moved_gib * kGiB);
  options.moves.bytes_per_second = options.move_rate * 1e9;
  options.moves.gpu_memory = static_cast<uint64_t>(options.gpu_gib * kGiB);
  if (options.nodes.empty() && options.synthetic == 0)
    return fail(kUsage, "--nodes FILE or --synthetic NODES is required");
  if (options.tasks.empty() && options.synthetic == 0) return fail(kUsage, "--tasks FILE is required");
  return simulate(options);
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const std::exception& failure) {
    return fail(kBadFile, failure.what());
  }
}
