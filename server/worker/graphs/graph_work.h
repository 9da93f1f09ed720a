// The work of one graph node in the form that the driver takes. Contains pointers to itself, so it cannot be
// copied or moved. Executor's thread.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "protocol/wire/graphs.h"
#include "protocol/wire/reader.h"
#include "server/worker/session/contexts.h"

namespace gpupool::worker {

class Session;

struct NodeWork {
  NodeWork() = default;
  NodeWork(const NodeWork&) = delete;
  NodeWork& operator=(const NodeWork&) = delete;

  // Reads and checks the body of a node, and makes the node's context current. Returns nullopt if the body is
  // malformed.
  std::optional<CUresult> read(Session& session, const wire::GraphNode& head, wire::Reader body);

  wire::GraphNodeKind kind = wire::GraphNodeKind::empty;
  ContextState* context = nullptr;
#if CUDA_VERSION >= 12000
  CUDA_KERNEL_NODE_PARAMS kernel{};
#endif
  std::vector<CUlaunchAttribute> attributes;
  CUDA_MEMSET_NODE_PARAMS fill{};
  CUDA_MEMCPY3D copy{};
  uint64_t callback = 0;
  CUevent event = nullptr;
  uint64_t event_handle = 0;  // the client's handle
  std::vector<CUstreamBatchMemOpParams> operations;
  wire::GraphCondition condition{};
  wire::GraphConditional conditional{};
  std::vector<uint64_t> bodies;

  bool names_array() const {
    return copy.srcMemoryType == CU_MEMORYTYPE_ARRAY || copy.dstMemoryType == CU_MEMORYTYPE_ARRAY;
  }
  // The parameters of a kernel node.
  std::span<std::byte> parameters() { return {parameters_.data(), parameter_bytes_}; }

 private:
  std::optional<CUresult> read_kernel(Session& session, wire::Reader body);
#if CUDA_VERSION >= 12000
  CUresult set_cooperation(const DeviceApi& api, bool wanted);
  CUresult pass_parameters_singly(const DeviceApi& api);
#endif
  std::optional<CUresult> read_fill(Session& session, wire::Reader body);
  std::optional<CUresult> read_copy(Session& session, wire::Reader body);
  std::optional<CUresult> read_operations(Session& session, wire::Reader body);
  std::optional<CUresult> read_condition(Session& session, wire::Reader body);

  std::vector<std::byte> parameters_;
  size_t parameter_bytes_ = 0;
  std::array<void*, 5> extra_{};
  std::vector<void*> single_parameters_;
};

}  // namespace gpupool::worker
