// The running tasks of a replay, and the moves that make room for the head of the queue: when they pay,
// which, and for how long (placement/defragment.h). Keeps the cluster's allocations of running tasks and of
// what is held for the head. Used by replay.cc; throws std::runtime_error on a broken invariant.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "scheduler/placement/cluster.h"
#include "scheduler/placement/defragment.h"

namespace gpupool::sim {

struct MoveOptions {
  bool defragment = false;
  bool reserve = false;  // hold GPUs for the first task that does not fit, as pool-scheduler does
  // As in pool-scheduler's policy; 0: no limit.
  uint32_t moves_per_hour = 60;
  uint64_t bytes_per_hour = uint64_t{1} << 40;
  uint32_t at_once = 4;
  double bytes_per_second = 1e9;
  double silence = 2;                        // seconds
  double longest = 60;                       // seconds
  uint64_t gpu_memory = uint64_t{16} << 30;  // of a GPU of which the file of nodes says nothing
};

struct Moved {
  uint32_t moves = 0;
  uint64_t bytes = 0;
  uint32_t begun = 0,
           granted = 0;       // tasks for which others moved; those that started in the place made for them
  std::vector<float> search;  // microseconds of CPU time of each search
};

class Mover {
 public:
  Mover(placement::Cluster& cluster, const MoveOptions& options) : cluster_(cluster), options_(options) {}

  // Allocates the placement of a task that starts.
  void start(uint32_t task, placement::Placement placement, double now);
  void end(uint32_t task);

  // Returns the time at which the next of the moves that are under way ends, or nullopt.
  std::optional<double> next_end() const;
  // Ends the moves that are due, and returns their tasks; each stood still for MoveOptions::silence.
  std::vector<uint32_t> end_moves(double now);

  // Lets others use what is held for the head.
  void release_hold();
  // Holds GPUs for this task, the first that waits: the place that moves make free for it, beginning such
  // moves if they pay, or with MoveOptions::reserve the host on which the fewest are missing.
  void hold_for(uint32_t task, const placement::Request& request, double now);
  // Returns the GPUs that moves of other tasks have freed for the task, or nullopt.
  std::optional<placement::Placement> place_for(uint32_t task, const placement::Request& request) const;
  // The task has started somewhere.
  void forget_head(uint32_t task);

  Moved& moved() { return moved_; }

 private:
  using Place = std::vector<std::pair<uint32_t, uint32_t>>;  // slots and GPUs, ordered

  struct Running {
    placement::Placement placement;
    double since = 0;
    // A part that moves: its index, its next place, and the time at which it arrives.
    size_t part = 0;
    placement::Placement to;
    double arrives = 0;
    bool moves() const { return !to.parts.empty(); }
  };

  void allocate(const placement::Placement& placement);
  void release(const placement::Placement& placement);
  void search(uint32_t task, const placement::Request& request, double now);
  void add_parts(uint32_t task, const Running& running, double now,
                 std::vector<placement::RunningPart>& parts,
                 std::vector<std::pair<uint32_t, size_t>>& of) const;
  uint64_t bytes_of(const placement::Part& part) const;
  placement::DefragLimits limits(double now);
  Place place_to_reserve(const placement::Request& request) const;
  void hold(const Place& place, const placement::Request& request);
  uint64_t need_memory(const placement::NodeState& node, const placement::Shape& shape) const {
    return shape.milli == placement::kWholeGpu ? node.gpu_memory : shape.memory_bytes;
  }

  placement::Cluster& cluster_;
  const MoveOptions options_;
  std::map<uint32_t, Running> running_;             // by task
  std::set<std::pair<double, uint32_t>> arrivals_;  // of moving tasks
  placement::Placement held_;
  std::optional<uint32_t> head_;  // the task for which others move, and its place
  Place place_;
  std::vector<uint32_t> steps_;  // the tasks that move for it
  double next_search_ = 0;
  struct Spent {
    double at;
    uint32_t moves;
    uint64_t bytes;
  };
  std::deque<Spent> spent_;
  Moved moved_;
};

}  // namespace gpupool::sim
