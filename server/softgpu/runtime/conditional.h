// Conditional nodes of graphs: a condition that kernels set, and bodies that are executed as it says.
#pragma once
#include <vector>

#include "protocol/cuda/cuda_header.h"
#include "server/softgpu/runtime/handles.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

class Graph;
class GraphExec;

// Of a graph; lives as long as that, or an executable graph made of it.
class Condition final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::graph_condition;
  Condition(uint32_t initial, bool at_launch) : initial(initial), at_launch(at_launch) {}
  // Once: kernels reach it by its handle from now on.
  void publish(uint64_t handle);
  uint32_t value() const;
  void assign_initial() const;

  const uint32_t initial;
  const bool at_launch;  // every launch begins with the initial value

 private:
  ~Condition() override;
  uint64_t handle_ = 0;
};

// What such a node says; with graph_mutex() held.
struct Conditional {
  Ref<Condition> condition;
  uint32_t type = 0;  // CUgraphConditionalNodeType
  std::vector<Ref<Graph>> bodies;
  std::vector<CUgraph> lent;  // their handles, as the program got them
};

// Which body comes next, or none: -1.
int next_body(uint32_t type, size_t bodies, uint32_t value);

// One launch of a node: looks at the condition, executes a body, and looks again if it is a loop.
class ConditionalOp final : public Op {
 public:
  ConditionalOp(Ref<Condition> condition, uint32_t type, std::vector<Ref<GraphExec>> bodies);
  ~ConditionalOp() override;

 private:
  class Round;
  void start() override;
  const Ref<Condition> condition_;
  const uint32_t type_;
  const std::vector<Ref<GraphExec>> bodies_;
};

}  // namespace gpupool::softgpu
