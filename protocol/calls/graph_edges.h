// Edge data of graphs (CUgraphEdgeData of CUDA 12.3), and the edges that captured launches make. Used by the
// client library and softgpu, which pass their own node types. Pure functions; any thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/driver/cuda_header.h"

#if CUDA_VERSION < 12030
struct CUgraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
#endif

namespace gpupool::cuda {

// Values of cuda.h that older headers lack: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, _LAUNCH_ORDER,
// CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.
constexpr uint8_t kPortProgrammatic = 1, kPortLaunchOrder = 2, kDependencyProgrammatic = 1;

struct EdgeData {
  uint8_t from_port = 0;
  uint8_t type = 0;
  bool operator==(const EdgeData&) const = default;
};
constexpr EdgeData kFullDependency{};

// True if an edge may have this data. As documented for CUgraphEdgeData, only kernels have ports, and
// programmatic edges are between kernels.
constexpr bool may_connect(EdgeData edge, bool from_kernel, bool to_kernel) {
  if (edge == kFullDependency) return true;
  if (!from_kernel || edge.from_port == 0 || edge.from_port > kPortLaunchOrder) return false;
  return edge.type == kDependencyProgrammatic ? to_kernel
                                              : edge.type == 0 && edge.from_port == kPortLaunchOrder;
}

// Edge data of a node's dependencies. A dependency that is not in the map is a full one.
template <class Node>
class EdgesFrom {
 public:
  EdgeData of(const Node& from) const {
    const auto found = edges_.find(&from);
    return found == edges_.end() ? kFullDependency : found->second;
  }
  void set(const Node& from, EdgeData edge) {
    if (edge == kFullDependency)
      edges_.erase(&from);
    else
      edges_[&from] = edge;
  }

 private:
  std::unordered_map<const Node*, EdgeData> edges_;
};

// --- Capture ---

// One of the nodes that a captured stream's next node will depend on.
template <class Node>
struct CapturedDependency {
  Node* node;
  EdgeData edge{};
  bool last_in_stream = false;  // the stream's own last node, not one that it waits for by an event
};

// Adds a dependency. If it exists with other edge data, it becomes a full dependency. If the stream waits by
// an event for all of its own last node, attributes of the next kernel do not relax that dependency.
template <class Node>
void add_dependency(std::vector<CapturedDependency<Node>>& all, Node* node, EdgeData edge) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& known) { return known.node == node; });
  if (found == all.end()) return all.push_back({node, edge});
  if (found->edge != edge) found->edge = kFullDependency;
  if (edge == kFullDependency) found->last_in_stream = false;
}

// To be called before adding a kernel with CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the
// attribute makes its edge from the previous kernel of its stream programmatic.
template <class Node>
void serialize_programmatically(std::vector<CapturedDependency<Node>>& all) {
  for (auto& dependency : all) {
    if (dependency.last_in_stream && dependency.node->type == CU_GRAPH_NODE_TYPE_KERNEL)
      dependency.edge = {kPortProgrammatic, kDependencyProgrammatic};
  }
}

// Edge data of a dependency of a node of type `to`: for anything but a kernel, programmatic edges become full
// dependencies.
template <class Node>
EdgeData captured_edge(const CapturedDependency<Node>& dependency, CUgraphNodeType to) {
  const bool allowed = may_connect(dependency.edge, dependency.node->type == CU_GRAPH_NODE_TYPE_KERNEL,
                                   to == CU_GRAPH_NODE_TYPE_KERNEL);
  return allowed ? dependency.edge : kFullDependency;
}

// True for CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, _PROGRAMMATIC_EVENT and
// _LAUNCH_COMPLETION_EVENT, which launches have and nodes do not.
inline bool is_launch_only_attribute(const CUlaunchAttribute& attribute) {
  const auto id = static_cast<unsigned>(attribute.id);
  return id == 6 || id == 7 || id == 12;
}

struct LaunchEvent {
  CUevent event;
  int flags;
  EdgeData edge;  // of edges to the kernels behind the event, in graphs
};

// The event that the attribute makes a kernel record. The value's members are read by their offsets, because
// older headers lack them.
inline std::optional<LaunchEvent> launch_event(const CUlaunchAttribute& attribute) {
  struct {
    CUevent event;
    int flags;
    int trigger_at_block_start;
  } value;
  static_assert(sizeof value <= sizeof attribute.value);
  std::memcpy(&value, &attribute.value, sizeof value);
  switch (static_cast<unsigned>(attribute.id)) {
    case 7:
      return LaunchEvent{value.event,
                         value.flags,
                         {value.trigger_at_block_start != 0 ? kPortLaunchOrder : kPortProgrammatic,
                          kDependencyProgrammatic}};
    case 12: return LaunchEvent{value.event, value.flags, {kPortLaunchOrder, 0}};
    default: return std::nullopt;
  }
}

inline bool serializes_programmatically(const CUlaunchAttribute& attribute) {
  int allowed = 0;
  std::memcpy(&allowed, &attribute.value, sizeof allowed);
  return static_cast<unsigned>(attribute.id) == 6 && allowed != 0;
}

// --- The calls that have edge data ---

inline CUgraphEdgeData to_cuda(EdgeData edge) {
  CUgraphEdgeData data{};
  data.from_port = edge.from_port;
  data.type = edge.type;
  return data;
}

// Edge data at index `place` of a list, which may be null. nullopt: invalid for an edge between nodes of
// these types.
inline std::optional<EdgeData> read_edge(const CUgraphEdgeData* edges, size_t place, CUgraphNodeType from,
                                         CUgraphNodeType to) {
  if (!edges) return kFullDependency;
  const CUgraphEdgeData& data = edges[place];
  const EdgeData edge{data.from_port, data.type};
  const bool reserved = data.to_port != 0 || std::any_of(std::begin(data.reserved), std::end(data.reserved),
                                                         [](unsigned char byte) { return byte != 0; });
  if (reserved || !may_connect(edge, from == CU_GRAPH_NODE_TYPE_KERNEL, to == CU_GRAPH_NODE_TYPE_KERNEL))
    return std::nullopt;
  return edge;
}

}  // namespace gpupool::cuda
