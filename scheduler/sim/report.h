// Formats pool-sim's results as text, JSON and plots. Pure functions; used by pool_sim.cc.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "scheduler/sim/experiment.h"
#include "scheduler/sim/replay.h"
#include "scheduler/sim/svg_plot.h"

namespace gpupool::sim {

struct Run {
  placement::PolicyKind policy = placement::PolicyKind::fragmentation;
  std::vector<Outcome> outcomes;   // of the experiment, one per seed; else
  std::vector<Replayed> replayed;  // one element, with --replay
};

struct Subject {
  std::string nodes, tasks;  // file names, or "synthetic"
  uint64_t node_count = 0, gpu_count = 0, task_count = 0;
  Mode mode = Mode::local;
  double load = 1;
};

double mean(const std::vector<Outcome>& outcomes, double Outcome::*what);

std::string text_of(const Subject& subject, const std::vector<Run>& runs);
nlohmann::ordered_json json_of(const Subject& subject, const std::vector<Run>& runs);
plot::Plot plot_of(const Subject& subject, const std::vector<Run>& runs);

}  // namespace gpupool::sim
