// Conditional nodes of graphs: conditions that kernels set, and bodies that run depending on them. Any
// thread, except where a lock is named.
#pragma once
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

class Graph;
class GraphExec;

// The condition of a CUgraphConditionalHandle. The graph and the executable graphs made from it hold
// references.
class Condition final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::graph_condition;
  Condition(uint32_t initial, bool at_launch) : initial(initial), at_launch(at_launch) {}
  // Makes the condition known to kernels under its handle. Called once.
  void publish(uint64_t handle);
  uint32_t value() const;
  void assign_initial() const;

  const uint32_t initial;
  const bool at_launch;  // every launch resets it to `initial`

 private:
  ~Condition() override;
  uint64_t handle_ = 0;
};

// The parameters of a conditional node; guarded by graph_mutex().
struct Conditional {
  Ref<Condition> condition;
  uint32_t type = 0;  // CUgraphConditionalNodeType
  std::vector<Ref<Graph>> bodies;
  std::vector<CUgraph> body_handles;  // returned in phGraph_out
};

// Returns the index of the body to run next, or -1.
int next_body(uint32_t type, size_t bodies, uint32_t value);

// One run of a conditional node: tests the condition and runs a body, repeatedly for a WHILE node.
class ConditionalOp final : public Op {
 public:
  ConditionalOp(Ref<Condition> condition, uint32_t type, std::vector<Ref<GraphExec>> bodies);
  ~ConditionalOp() override;

 private:
  class BodyEnd;
  void start() override;
  const Ref<Condition> condition_;
  const uint32_t type_;
  const std::vector<Ref<GraphExec>> bodies_;
};

}  // namespace gpupool::softgpu
