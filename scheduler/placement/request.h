// Inputs and outputs of the placement library: requests, node specifications, placements. Values; any thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gpupool::placement {

constexpr int kWholeGpu = 1000;  // thousandths of one GPU's compute
constexpr int kMaxGpusPerNode = 16;
constexpr int kMaxModels = 64;

// The distance of two nodes: the same host, the same rack, the same zone, or any.
enum class Distance : uint8_t { host, rack, zone, any };

// Constrains a request's GPUs relative to the placements of a group.
struct GroupRule {
  std::string group;
  bool apart = false;                // false: near one of the group's nodes, if any; true: near none
  Distance within = Distance::host;  // maximum distance that counts as near
};

// Asks for the same share of `gpus` distinct GPUs. With `gpus` 0 it asks for processors and host memory only.
struct Request {
  int gpus = 1;
  int milli = kWholeGpu;             // 1..1000; a whole GPU comes with all of its memory
  uint64_t memory_bytes = 0;         // on each GPU
  std::vector<std::string> models;   // empty: any
  int64_t cpu_milli = 0;             // on the GPUs' nodes, divided evenly among the GPUs
  int64_t host_memory = 0;           // bytes, likewise
  Distance spread = Distance::host;  // maximum distance of the GPUs' nodes; the nearest are taken
  std::string group;                 // the request's group; empty: none
  std::vector<GroupRule> rules;
  // True if all of its GPUs must be on one node.
  bool one_host() const { return gpus <= 1 || spread == Distance::host; }
};

// Identifies a node of a Cluster. The id of a removed node is never reused, though its slot is.
struct NodeId {
  uint32_t slot = 0;
  uint32_t generation = 0;
  bool operator==(const NodeId&) const = default;
};

// All GPUs of a node are of one model: a host with several models is entered as several nodes.
struct NodeSpec {
  std::string name;
  std::string zone, rack;  // racks with equal names in different zones are distinct
  std::string model;
  int gpus = 0;             // 0..kMaxGpusPerNode
  uint64_t gpu_memory = 0;  // bytes per GPU
  int64_t cpu_milli = 0;
  int64_t host_memory = 0;  // bytes
};

// The resources of one node that a request gets. Bit i of gpu_mask stands for the node's GPU i.
struct Part {
  NodeId node;
  uint16_t gpu_mask = 0;
  uint16_t milli = 0;         // of each
  uint64_t memory_bytes = 0;  // of each
  int64_t cpu_milli = 0;
  int64_t host_memory = 0;
  bool operator==(const Part&) const = default;
};

struct Placement {
  std::vector<Part> parts;
  std::string group;
  bool operator==(const Placement&) const = default;
};

}  // namespace gpupool::placement
