// Reads a cluster and a list of tasks from CSV files, whose columns docs/placement.md lists. Pure functions;
// used by pool_sim.cc.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "scheduler/placement/request.h"
#include "scheduler/sim/csv.h"

namespace gpupool::sim {

struct Task {
  std::string name;
  placement::Request request;  // in Mode::local
  std::string tenant;
  int64_t arrives = 0;  // seconds
  int64_t runs = 0;     // seconds; 0 where the trace has no times
  int64_t milli() const { return int64_t{request.gpus} * request.milli; }
};

Result<std::vector<placement::NodeSpec>> nodes_of(const Csv& csv);
Result<std::vector<Task>> tasks_of(const Csv& csv);

// local: a task runs on the host of its GPUs and needs processors and memory there. pool: only the GPUs are
// on GPU hosts, possibly several; processors and memory are elsewhere. one_host: the same, but all GPUs of a
// task are on one host.
enum class Mode { local, pool, one_host };
const char* name_of(Mode mode);
std::optional<Mode> mode_named(const std::string& name);
placement::Request in_mode(const placement::Request& request, Mode mode);

}  // namespace gpupool::sim
