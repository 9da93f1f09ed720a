// Data of graph edges (CUgraphEdgeData of CUDA 12.3), and the edges that captured launches make: common to the client library and softgpu, which pass
// their own types of nodes. Pure; any thread.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/cuda/cuda_header.h"

#if CUDA_VERSION < 12030
struct CUgraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
#endif

namespace gpupool::cuda {

// Numbers of cuda.h, which older headers lack: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, _LAUNCH_ORDER, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.
constexpr uint8_t kPortProgrammatic = 1, kPortLaunchOrder = 2, kDependencyProgrammatic = 1;

struct EdgeData {
  uint8_t from_port = 0;
  uint8_t type = 0;
  bool operator==(const EdgeData&) const = default;
};
constexpr EdgeData kFullDependency{};

// As documented for CUgraphEdgeData: only kernels have ports, and programmatic edges are between kernels.
constexpr bool may_connect(EdgeData edge, bool from_kernel, bool to_kernel) {
  if (edge == kFullDependency) return true;
  if (!from_kernel || edge.from_port == 0 || edge.from_port > kPortLaunchOrder) return false;
  return edge.type == kDependencyProgrammatic ? to_kernel : edge.type == 0 && edge.from_port == kPortLaunchOrder;
}

// Edge data of a node's dependencies. An edge that is not in the map is a full dependency.
template <class Node>
class EdgesFrom {
 public:
  EdgeData of(const Node& from) const {
    const auto found = edges_.find(&from);
    return found == edges_.end() ? kFullDependency : found->second;
  }
  void set(const Node& from, EdgeData edge) {
    if (edge == kFullDependency) edges_.erase(&from);
    else edges_[&from] = edge;
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
  bool last_in_stream = false;  // the stream's own last node, rather than one that it waits for by an event
};

// A dependency that is there already keeps its edge data only if the new one has the same. Where the stream waits for all of its own last node, by
// an event, no attribute of the next kernel shortens that.
template <class Node>
void add_dependency(std::vector<CapturedDependency<Node>>& all, Node* node, EdgeData edge) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& known) { return known.node == node; });
  if (found == all.end()) return all.push_back({node, edge});
  if (found->edge != edge) found->edge = kFullDependency;
  if (edge == kFullDependency) found->last_in_stream = false;
}

// A kernel with CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION comes next: the attribute concerns the kernel before it in its stream.
template <class Node>
void serialize_programmatically(std::vector<CapturedDependency<Node>>& all) {
  for (auto& dependency : all) {
    if (dependency.last_in_stream && dependency.node->type == CU_GRAPH_NODE_TYPE_KERNEL) dependency.edge = {kPortProgrammatic, kDependencyProgrammatic};
  }
}

// The data of the edge to a node of type `to`: programmatic edges are full dependencies for anything but a kernel.
template <class Node>
EdgeData captured_edge(const CapturedDependency<Node>& dependency, CUgraphNodeType to) {
  const bool allowed = may_connect(dependency.edge, dependency.node->type == CU_GRAPH_NODE_TYPE_KERNEL, to == CU_GRAPH_NODE_TYPE_KERNEL);
  return allowed ? dependency.edge : kFullDependency;
}

// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, _PROGRAMMATIC_EVENT and _LAUNCH_COMPLETION_EVENT: launches have them, nodes do not.
inline bool is_of_launches_only(const CUlaunchAttribute& attribute) {
  const auto id = static_cast<unsigned>(attribute.id);
  return id == 6 || id == 7 || id == 12;
}

struct LaunchEvent {
  CUevent event;
  int flags;
  EdgeData edge;  // to kernels behind the event, in graphs
};

// The event that the attribute makes a kernel record. All members of the value are read by their place, since older headers lack them.
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
      return LaunchEvent{value.event, value.flags, {value.trigger_at_block_start != 0 ? kPortLaunchOrder : kPortProgrammatic, kDependencyProgrammatic}};
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

// The data of the edge at this place of a list that may be null; nullopt: an edge between such nodes cannot have it.
inline std::optional<EdgeData> read_edge(const CUgraphEdgeData* edges, size_t place, CUgraphNodeType from, CUgraphNodeType to) {
  if (!edges) return kFullDependency;
  const CUgraphEdgeData& data = edges[place];
  const EdgeData edge{data.from_port, data.type};
  const bool reserved = data.to_port != 0 || std::any_of(std::begin(data.reserved), std::end(data.reserved), [](unsigned char byte) { return byte != 0; });
  if (reserved || !may_connect(edge, from == CU_GRAPH_NODE_TYPE_KERNEL, to == CU_GRAPH_NODE_TYPE_KERNEL)) return std::nullopt;
  return edge;
}

}  // namespace gpupool::cuda
