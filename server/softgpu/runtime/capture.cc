// Stream capture: makes a graph of work that is queued on streams (graph.h).
#include <algorithm>

#include "server/softgpu/runtime/copy_engine.h"
#include "server/softgpu/runtime/graph.h"
#include "server/softgpu/runtime/host_functions.h"
#include "server/softgpu/runtime/module.h"
#include "server/softgpu/runtime/value_ops.h"

namespace gpupool::softgpu {

namespace {

struct Captures {
  std::mutex mutex;  // innermost lock
  std::vector<Capture*> all;
};
Captures& captures() {
  static Captures* const only = new Captures;
  return *only;
}

}  // namespace

void Capture::add_to_list() {
  std::lock_guard guard(captures().mutex);
  captures().all.push_back(this);
  captures_in_progress.store(static_cast<int>(captures().all.size()));
}

void Capture::remove_from_list() {
  std::lock_guard guard(captures().mutex);
  std::erase(captures().all, this);
  captures_in_progress.store(static_cast<int>(captures().all.size()));
}

CUstreamCaptureMode& thread_capture_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

CUresult refuse_unsafe() {
  if (captures_in_progress.load(std::memory_order_relaxed) == 0) [[likely]]
    return CUDA_SUCCESS;
  const CUstreamCaptureMode mine = thread_capture_mode();
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard guard(graph_mutex());
  std::lock_guard listed(captures().mutex);
  CUresult result = CUDA_SUCCESS;
  for (Capture* const capture : captures().all) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool own = capture->thread == std::this_thread::get_id();
    const bool global =
        mine == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Capture::add_op(const Stream& stream, const Ref<Op>& op) {
  if (invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!op->clone()) {
    invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (dynamic_cast<GridOp*>(op.get()) != nullptr) {
    type = CU_GRAPH_NODE_TYPE_KERNEL;
  } else if (const auto* transfer = dynamic_cast<TransferOp*>(op.get())) {
    type = transfer->transfer().is_fill() ? CU_GRAPH_NODE_TYPE_MEMSET : CU_GRAPH_NODE_TYPE_MEMCPY;
  } else if (dynamic_cast<HostFunctionOp*>(op.get()) != nullptr) {
    type = CU_GRAPH_NODE_TYPE_HOST;
  } else if (dynamic_cast<BatchOp*>(op.get()) != nullptr || dynamic_cast<ValueWaitOp*>(op.get()) != nullptr ||
             dynamic_cast<ValueWriteOp*>(op.get()) != nullptr) {
    type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  }
  const Ref<GraphNode> node = append(stream, type);
  node->prototype = op;
  if (const auto* transfer = dynamic_cast<TransferOp*>(op.get()))
    describe_transfer(transfer->transfer(), *node);
  return CUDA_SUCCESS;
}

Ref<GraphNode> Capture::append(const Stream& stream, CUgraphNodeType type) {
  Ref<GraphNode> node = graph->add(type, {});
  for (const CapturedDependency& before : frontier[&stream])
    Graph::connect(*before.node, *node, cuda::captured_edge(before, type));
  frontier[&stream] = {{node.get(), {}, true}};
  return node;
}

Ref<GraphNode> Capture::add_node(const Stream& stream, CUgraphNodeType type, uint64_t event) {
  Ref<GraphNode> node = append(stream, type);
  node->event = event;
  return node;
}

void Capture::join(const Ref<Stream>& stream, const std::vector<CapturedDependency>& nodes) {
  if (frontier.find(stream.get()) == frontier.end()) {
    streams.push_back(stream);
    stream->set_capture(Ref<Capture>::share(this));
  }
  std::vector<CapturedDependency>& known = frontier[stream.get()];
  for (const CapturedDependency& before : nodes) cuda::add_dependency(known, before.node, before.edge);
}

void Capture::stream_destroyed(Stream& stream) {
  if (&stream == origin) {
    invalid = true;
    end();
  } else {
    stream.set_capture(nullptr);  // `streams` keeps the object, because `frontier` has its address
  }
}

void Capture::end() {
  ended = true;
  remove_from_list();
  for (const Ref<Stream>& member : std::exchange(streams, {})) member->set_capture(nullptr);
}

void describe_transfer(const Transfer& transfer, GraphNode& node) {
  if (transfer.is_fill()) {
    node.fill.dst = transfer.destination;
    node.fill.pitch = transfer.destination_pitch;
    node.fill.value = transfer.fill_value;
    node.fill.elementSize = transfer.fill_width;
    node.fill.width = transfer.width / transfer.fill_width;
    node.fill.height = transfer.height;
    return;
  }
  node.copy.srcMemoryType = node.copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  node.copy.srcDevice = transfer.source;
  node.copy.dstDevice = transfer.destination;
  node.copy.srcPitch = transfer.source_pitch;
  node.copy.dstPitch = transfer.destination_pitch;
  node.copy.srcHeight = transfer.source_pitch == 0 ? 0 : transfer.source_slice / transfer.source_pitch;
  node.copy.dstHeight =
      transfer.destination_pitch == 0 ? 0 : transfer.destination_slice / transfer.destination_pitch;
  node.copy.WidthInBytes = transfer.width;
  node.copy.Height = transfer.height;
  node.copy.Depth = transfer.depth;
}

}  // namespace gpupool::softgpu
