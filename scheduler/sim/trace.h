// A cluster and a list of tasks, read from CSV files. docs/placement.md names their columns.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/wire/result.h"
#include "scheduler/placement/request.h"
#include "scheduler/sim/csv.h"

namespace gpupool::sim {

struct Task {
  std::string name;
  placement::Request request;  // as it would be on its GPUs' node
  std::string tenant;
  int64_t arrives = 0;         // seconds
  int64_t runs = 0;            // seconds; 0 where the trace has no times
  int64_t milli() const { return int64_t{request.gpus} * request.milli; }
};

Result<std::vector<placement::NodeSpec>> nodes_of(const Csv& csv);
Result<std::vector<Task>> tasks_of(const Csv& csv);

// Where only GPUs are on the GPU's node: processors and host memory are anywhere, and GPUs of one task may be of several hosts.
enum class Mode { local, pool };
placement::Request in_mode(const placement::Request& request, Mode mode);

}  // namespace gpupool::sim
