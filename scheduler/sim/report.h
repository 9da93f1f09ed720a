// What pool-sim tells: for people as text, for programs as JSON, and as pictures.
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
  std::vector<Outcome> outcomes;   // of the experiment, one for each seed
  std::vector<Replayed> replayed;  // or of the replay
};

struct Subject {
  std::string nodes, tasks;        // where they are from
  uint64_t node_count = 0, gpu_count = 0, task_count = 0;
  Mode mode = Mode::local;
  double load = 1;
};

double mean(const std::vector<Outcome>& outcomes, double Outcome::*what);

std::string text_of(const Subject& subject, const std::vector<Run>& runs);
nlohmann::ordered_json json_of(const Subject& subject, const std::vector<Run>& runs);
plot::Plot plot_of(const Subject& subject, const std::vector<Run>& runs);

}  // namespace gpupool::sim
