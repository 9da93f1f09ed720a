// Defines the functions of the kinds of graph nodes (CUDA_GRAPH_NODE of calls.def) as exported symbols.
#include "client/api/graph_node_calls.h"
#include "protocol/driver/export_function.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

template <class Function, class NodeKind>
struct NodeCall;

template <class... A, class NodeKind>
struct NodeCall<CUresult (*)(A...), NodeKind> {
  static CUresult add(A... given) { return add_node<NodeKind>(given...); }
  static CUresult get(A... given) { return get_params<NodeKind>(given...); }
  static CUresult set(A... given) { return set_params<NodeKind>(given...); }
  static CUresult set_in_exec(A... given) noexcept {
    return guarded([&] { return set_params_in_exec<NodeKind>(given...); });
  }
};

}  // namespace

#define CUDA_GRAPH_NODE(name, operation, kind) \
  GPUPOOL_EXPORT_FUNCTION(name, NodeCall<decltype(&::name), node_kinds::kind>::operation)

#define CUDA_CALL(...)
#define CUDA_CALL_CUSTOM_EXPORT(...)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
