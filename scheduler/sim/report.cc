#include "scheduler/sim/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gpupool::sim {
namespace {

using Json = nlohmann::ordered_json;

template <class... Values>
std::string printed(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// Takes the maximum over the seeds, because a mean of percentiles is not a percentile.
Times worst(const std::vector<Outcome>& outcomes) {
  Times out;
  for (const Outcome& outcome : outcomes) {
    out.p50 = std::max(out.p50, outcome.decision.p50);
    out.p99 = std::max(out.p99, outcome.decision.p99);
    out.most = std::max(out.most, outcome.decision.most);
  }
  return out;
}

double bytes_per_gpu(const Subject& subject, const std::vector<Outcome>& outcomes) {
  uint64_t most = 0;
  for (const Outcome& outcome : outcomes)
    most = std::max({most, outcome.beyond_inventory, outcome.heap_growth});
  return subject.gpu_count == 0 ? 0 : static_cast<double>(most) / static_cast<double>(subject.gpu_count);
}

double deviation(const std::vector<Outcome>& outcomes, double Outcome::*what) {
  const double middle = mean(outcomes, what);
  double sum = 0;
  for (const Outcome& outcome : outcomes) sum += (outcome.*what - middle) * (outcome.*what - middle);
  return outcomes.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(outcomes.size() - 1));
}

Json times_json(const Times& times) {
  return {{"p50", times.p50}, {"p99", times.p99}, {"max", times.most}};
}

Json waiting_json(const Waiting& waiting) {
  return {{"tasks", waiting.tasks},
          {"mean", waiting.mean},
          {"p50", waiting.p50},
          {"p99", waiting.p99},
          {"max", waiting.most}};
}

Json experiment_json(const Subject& subject, const std::vector<Outcome>& outcomes) {
  Json json = {
      {"allocated_percent_at_100", mean(outcomes, &Outcome::allocated_100)},
      {"allocated_percent_at_130", mean(outcomes, &Outcome::allocated_130)},
      {"deviation_at_100", deviation(outcomes, &Outcome::allocated_100)},
      {"deviation_at_130", deviation(outcomes, &Outcome::allocated_130)},
      {"offline_percent_at_100", mean(outcomes, &Outcome::offline_100)},
      {"unusable_percent", mean(outcomes, &Outcome::unusable)},
      {"decision_us", times_json(worst(outcomes))},
      {"bytes_per_gpu_beyond_inventory", bytes_per_gpu(subject, outcomes)},
  };
  for (const Outcome& outcome : outcomes) {
    Json refused = Json::object();
    for (const Refused& one : outcome.refused) refused[one.what] = one.tasks;
    json["seeds"].push_back({{"seed", outcome.seed},
                             {"allocated_percent_at_100", outcome.allocated_100},
                             {"allocated_percent_at_130", outcome.allocated_130},
                             {"offline_percent_at_100", outcome.offline_100},
                             {"unusable_percent", outcome.unusable},
                             {"arrived", outcome.arrived},
                             {"refused_at_100", outcome.refused_100},
                             {"refused_at_130", outcome.refused_130},
                             {"refused", std::move(refused)},
                             {"decision_us", times_json(outcome.decision)},
                             {"placer_bytes", outcome.beyond_inventory},
                             {"heap_growth_bytes", outcome.heap_growth}});
  }
  return json;
}

Json replay_json(const Replayed& replayed) {
  Json json = {{"placed", replayed.placed},
               {"never", replayed.never},
               {"mean_allocated_percent", replayed.mean_allocated},
               {"most_allocated_percent", replayed.most_allocated},
               {"waiting_seconds", waiting_json(replayed.waiting)},
               {"fairness", replayed.fairness},
               {"decision_us", times_json(replayed.decision)}};
  if (replayed.defragmented)
    json["defragmentation"] = {{"moves", replayed.moves},
                               {"moves_per_hour", replayed.moves_per_hour},
                               {"bytes_per_hour", replayed.bytes_per_hour},
                               {"begun", replayed.defragmentations},
                               {"admitted", replayed.admitted},
                               {"search_us", times_json(replayed.search)}};
  for (const auto& [name, waiting] : replayed.by_size)
    json["waiting_seconds_by_size"][name] = waiting_json(waiting);
  for (const auto& [name, waiting] : replayed.by_tenant)
    json["waiting_seconds_by_tenant"][name] = waiting_json(waiting);
  return json;
}

std::string label_of(const Run& run) {
  const bool moves = !run.replayed.empty() && run.replayed.front().defragmented;
  return placement::name_of(run.policy) + std::string(moves ? "+moves" : "");
}

std::string replay_text(const Run& run, const Replayed& replayed) {
  std::string text = printed("%-19s %7u %7u %9.2f %9.2f %11.0f %11.0f %11.0f %9.3f %9.1f\n",
                             label_of(run).c_str(), replayed.placed, replayed.never, replayed.mean_allocated,
                             replayed.most_allocated, replayed.waiting.mean, replayed.waiting.p50,
                             replayed.waiting.p99, replayed.fairness, replayed.decision.p99);
  if (replayed.defragmented) {
    constexpr double kGiB = 1 << 30;
    text += printed(
        "  %.2f moves and %.2f GiB an hour in %.1f hours for %u of %u tasks; search p99 %.0f us, at most "
        "%.0f\n",
        replayed.moves_per_hour, replayed.bytes_per_hour / kGiB, replayed.hours, replayed.admitted,
        replayed.defragmentations, replayed.search.p99, replayed.search.most);
  }
  for (const auto& [name, waiting] : replayed.by_size) {
    text += printed("  %-20s %7u tasks waited %.0f s, p50 %.0f, p99 %.0f, at most %.0f\n", name.c_str(),
                    waiting.tasks, waiting.mean, waiting.p50, waiting.p99, waiting.most);
  }
  return text;
}

}  // namespace

double mean(const std::vector<Outcome>& outcomes, double Outcome::*what) {
  double sum = 0;
  for (const Outcome& outcome : outcomes) sum += outcome.*what;
  return outcomes.empty() ? 0 : sum / static_cast<double>(outcomes.size());
}

std::string text_of(const Subject& subject, const std::vector<Run>& runs) {
  std::string text = printed("%llu nodes, %llu GPUs (", static_cast<unsigned long long>(subject.node_count),
                             static_cast<unsigned long long>(subject.gpu_count)) +
                     subject.nodes + "), " + std::to_string(subject.task_count) + " tasks (" + subject.tasks +
                     "), mode " + name_of(subject.mode) + "\n";
  if (!runs.empty() && !runs.front().replayed.empty()) {
    text += printed("%-19s %7s %7s %9s %9s %11s %11s %11s %9s %9s\n", "policy", "placed", "never", "mean %",
                    "most %", "waited s", "p50 s", "p99 s", "fairness", "p99 us");
    for (const Run& run : runs) text += replay_text(run, run.replayed.front());
    return text;
  }
  text += printed("%-14s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "policy", "at 100 %", "at 130 %", "offline",
                  "unusable", "refused", "p50 us", "p99 us", "max us", "B/GPU");
  for (const Run& run : runs) {
    double refused = 0;
    for (const Outcome& outcome : run.outcomes) refused += outcome.refused_130;
    const Times times = worst(run.outcomes);
    text += printed("%-14s %9.2f %9.2f %9.2f %9.2f %9.0f %9.1f %9.1f %9.1f %9.0f\n",
                    placement::name_of(run.policy), mean(run.outcomes, &Outcome::allocated_100),
                    mean(run.outcomes, &Outcome::allocated_130), mean(run.outcomes, &Outcome::offline_100),
                    mean(run.outcomes, &Outcome::unusable),
                    refused / static_cast<double>(std::max<size_t>(1, run.outcomes.size())), times.p50,
                    times.p99, times.most, bytes_per_gpu(subject, run.outcomes));
  }
  return text +
         "offline: best-fit-decreasing of the tasks that arrived up to 100 %; unusable: free at the end but "
         "unusable for an average task;\n"
         "times: CPU time of the deciding thread, the worst seed\n";
}

nlohmann::ordered_json json_of(const Subject& subject, const std::vector<Run>& runs) {
  Json json = {
      {"nodes", {{"from", subject.nodes}, {"count", subject.node_count}, {"gpus", subject.gpu_count}}},
      {"tasks", {{"from", subject.tasks}, {"count", subject.task_count}}},
      {"mode", name_of(subject.mode)}};
  for (const Run& run : runs) {
    Json one =
        run.replayed.empty() ? experiment_json(subject, run.outcomes) : replay_json(run.replayed.front());
    one["policy"] = placement::name_of(run.policy);
    if (!run.replayed.empty()) {
      one["load"] = subject.load;
      one["defragment"] = run.replayed.front().defragmented;
    }
    json["runs"].push_back(std::move(one));
  }
  return json;
}

plot::Plot plot_of(const Subject& subject, const std::vector<Run>& runs) {
  plot::Plot plot{.title = subject.tasks + ", mode " + name_of(subject.mode),
                  .x_label = "GPUs asked for, % of the cluster",
                  .y_label = "GPUs allocated, %",
                  .lines = {},
                  .logarithmic = false};
  for (const Run& run : runs) {
    plot::Line line{.name = label_of(run), .points = {}};
    if (!run.replayed.empty()) {
      plot.x_label = "hours";
      line.points = run.replayed.front().curve;
    }
    constexpr size_t kFrom = 60;  // percent: below it all policies place everything
    for (size_t i = kFrom; !run.outcomes.empty() && i < run.outcomes.front().curve.size(); ++i) {
      double sum = 0;
      for (const Outcome& outcome : run.outcomes) sum += outcome.curve[i].allocated;
      line.points.emplace_back(run.outcomes.front().curve[i].arrived,
                               sum / static_cast<double>(run.outcomes.size()));
    }
    if (!line.points.empty()) plot.lines.push_back(std::move(line));
  }
  return plot;
}

}  // namespace gpupool::sim
