// What is asked of the pool, and what it gives.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gpupool::placement {

constexpr int kWholeGpu = 1000;         // thousandths of one GPU's compute
constexpr int kMaxGpusPerNode = 16;
constexpr int kMaxModels = 64;

// How far apart two nodes are: the same one, one rack, one zone, or anything.
enum class Distance : uint8_t { host, rack, zone, any };

// Where a request's GPUs must be in relation to what is allocated to a group of requests.
struct GroupRule {
  std::string group;
  bool apart = false;                 // false: near one of the group's (anywhere while it has none); true: away from all of them
  Distance within = Distance::host;   // of it
};

// `gpus` different GPUs, of each the same share. `gpus` 0: only processors and host memory.
struct Request {
  int gpus = 1;
  int milli = kWholeGpu;              // 1..1000; a whole GPU comes with all of its memory
  uint64_t memory_bytes = 0;          // of each GPU
  std::vector<std::string> models;    // empty: any
  int64_t cpu_milli = 0;              // on the node of the GPUs; for GPUs of several nodes, as many for each GPU as the even part
  int64_t host_memory = 0;            // bytes, the same
  Distance spread = Distance::host;   // how far the GPUs may be apart; the nearest are taken
  std::string group;                  // that it belongs to; empty: none
  std::vector<GroupRule> rules;
};

// A node of a Cluster. A removed node's id is never given to another.
struct NodeId {
  uint32_t slot = 0;
  uint32_t generation = 0;
  bool operator==(const NodeId&) const = default;
};

// One model of GPU per node: a host with several kinds is as many nodes.
struct NodeSpec {
  std::string name;
  std::string zone, rack;             // racks of different zones are different ones
  std::string model;
  int gpus = 0;                       // 0..kMaxGpusPerNode
  uint64_t gpu_memory = 0;            // bytes of each
  int64_t cpu_milli = 0;
  int64_t host_memory = 0;            // bytes
};

// What one node gives to a request: bit i of gpu_mask is its GPU i.
struct Part {
  NodeId node;
  uint16_t gpu_mask = 0;
  uint16_t milli = 0;                 // of each
  uint64_t memory_bytes = 0;          // of each
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
