// Simulates tasks that arrive and depart at the trace's times. Tasks that do not fit wait. After each
// departure the waiting tasks are tried in order of arrival, and later ones may overtake those that still do
// not fit (backfill without reservations). MoveOptions add a reservation for the first of them, and moves of
// running tasks that make room for it. Used by pool_sim.cc; throws std::runtime_error.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/sim/experiment.h"
#include "scheduler/sim/mover.h"

namespace gpupool::sim {

struct Waiting {
  uint32_t tasks = 0;
  double mean = 0, p50 = 0, p99 = 0, most = 0;  // seconds
};

struct Replayed {
  uint32_t placed = 0, never = 0;                 // never: tasks that no node could ever serve
  double mean_allocated = 0, most_allocated = 0;  // percent; mean over time until the last arrival
  Waiting waiting;
  std::map<std::string, Waiting> by_size;  // "no GPU", "share", "one GPU", "several GPUs"
  std::map<std::string, Waiting> by_tenant;
  double fairness = 1;  // Jain's index of the tenants' mean slowdowns; 1: equal
  Times decision;
  std::vector<std::pair<double, double>> curve;  // hours, percent allocated
  double hours = 0;                              // from the first to the last arrival
  bool defragmented = false;                     // the figures below were measured
  double moves_per_hour = 0, bytes_per_hour = 0;
  uint32_t moves = 0, defragmentations = 0,
           admitted = 0;  // admitted: tasks that started after others had moved
  Times search;
};

// `load`: factor by which the arrivals are accelerated. `warm_up`: fraction of the arrivals after which
// waiting times, allocation and moves are measured.
Replayed replay(const Experiment& experiment, double load, uint64_t seed, const MoveOptions& moves = {},
                double warm_up = 0);

}  // namespace gpupool::sim
