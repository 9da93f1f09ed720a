#include "client/streams/side_stream.h"

#include <algorithm>

#include "client/copies/server_copy.h"
#include "client/streams/cross_server.h"

namespace gpupool::client {
CUresult borrow_stream(Context& context, std::vector<InternalStream>& streams, CUstream* stream) {
  constexpr size_t kMostStreams = 8;  // enough that streams with long waits seldom delay others
  std::lock_guard lock(context.mutex);
  const uint32_t epoch = context.epoch.load();
  std::erase_if(streams, [&](const InternalStream& one) { return one.epoch != epoch; });
  auto least = std::ranges::min_element(streams, {}, &InternalStream::uses);
  if (least == streams.end() || (least->uses != 0 && streams.size() < kMostStreams)) {
    CUstream made = nullptr;
    if (const CUresult result = create_stream(context, CU_STREAM_NON_BLOCKING, 0, &made);
        result != CUDA_SUCCESS)
      return result;
    least = streams.insert(streams.end(), {cuda::handle_bits(made), epoch, 0});
  }
  ++least->uses;
  *stream = cuda::handle_from_bits<CUstream>(least->stream);
  return CUDA_SUCCESS;
}

Context* side_context(const Context& context, uint64_t address) {
  if (devices().size() == 1) [[likely]]
    return nullptr;
  const auto known = context.session->addresses().find(address);
  if (!known || !known->device || known->device == context.device) return nullptr;
  auto* const its = handles().find_as<Context>(Kind::context, known->context);
  if (its && its->device == known->device) return its;
  // Memory of a pool may be on another device than the context that allocated it.
  Context* const primary = known->device->primary;
  return primary->active.load() ? primary : nullptr;
}

// Creates a new event each time: a shared one would order unrelated streams behind each other.
template <class Wait>
CUresult with_event(Context& context, CUstream stream, Wait&& wait) {
  Context* its = &context;
  if (stream) {
    if (const CUresult result = context_of_stream(stream, &its); result != CUDA_SUCCESS) return result;
  }
  const CallTarget target{its->session, its};
  CUevent event = nullptr;
  CUresult result = rows::cuEventCreate::at(target, {&event, CU_EVENT_DISABLE_TIMING});
  if (result != CUDA_SUCCESS) return result;
  result = rows::cuEventRecord::at(target, {event, stream});
  if (result == CUDA_SUCCESS) result = wait(event);
  (void)rows::cuEventDestroy_v2::at(target, {event});  // the server destroys it after the record and the wait
  return result;
}

CUresult order_after(Context& context, CUstream stream, Context& earlier_context, CUstream earlier) {
  return with_event(earlier_context, earlier, [&](CUevent event) {
    if (earlier_context.session != context.session)
      return wait_for_event(context, stream, *handles().find(Kind::event, cuda::handle_bits(event)));
    return rows::cuStreamWaitEvent::at({context.session, &context}, {stream, event, 0});
  });
}

CUresult record_marker_event(Context& context, CUstream stream) {
  return with_event(context, stream, [](CUevent) { return CUDA_SUCCESS; });
}

CUresult fork_to_side_stream(Context& context, CUstream stream, Context& side, CUstream* side_stream) {
  const CUresult result = borrow_stream(side, side.side_streams, side_stream);
  return result == CUDA_SUCCESS ? order_after(side, *side_stream, context, stream) : result;
}

CUresult join_side_stream(Context& context, CUstream stream, Context& side, CUstream side_stream) {
  return order_after(context, stream, side, side_stream);
}

}  // namespace gpupool::client
