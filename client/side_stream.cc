#include "client/side_stream.h"

#include <algorithm>

#include "client/server_copy.h"

namespace gpupool::client {
namespace {

// Of a context: enough that what waits in one of them seldom holds up others.
constexpr size_t kSideStreams = 8;

// The least used one, since forks take turns.
CUresult take_stream(Context& side, CUstream* stream) {
  std::lock_guard lock(side.mutex);
  const uint32_t epoch = side.epoch.load();
  std::erase_if(side.side_streams, [&](const LentStream& known) { return known.epoch != epoch; });
  if (side.side_streams.size() < kSideStreams) {
    CUstream made = nullptr;
    if (const CUresult result = create_stream(side, CU_STREAM_NON_BLOCKING, 0, &made); result != CUDA_SUCCESS) return result;
    side.side_streams.push_back({cuda::handle_bits(made), epoch, 0});
  }
  const auto least = std::ranges::min_element(side.side_streams, {}, &LentStream::uses);
  ++least->uses;
  *stream = cuda::handle_from_bits<CUstream>(least->stream);
  return CUDA_SUCCESS;
}

}  // namespace

Context* side_context(const Context& context, uint64_t address) {
  if (devices().size() == 1) [[likely]] return nullptr;
  const auto known = context.session->addresses().find(address);
  if (!known || !known->device || known->device == context.device) return nullptr;
  auto* const its = handles().find_as<Context>(Kind::context, known->context);
  if (its && its->device == known->device) return its;
  Context* const primary = known->device->primary;  // a memory pool may be another device's than the context that asked
  return primary->active.load() ? primary : nullptr;
}

// An event of its own each time: one that is shared would put streams behind each other that have nothing to do with each other.
template <class Wait>
CUresult with_event(Context& context, CUstream stream, Wait&& wait) {
  Context* its = &context;
  if (stream) {
    if (const CUresult result = context_of_stream(stream, &its); result != CUDA_SUCCESS) return result;
  }
  const Place place{its->session, its};
  CUevent event = nullptr;
  CUresult result = rows::cuEventCreate::at(place, {&event, CU_EVENT_DISABLE_TIMING});
  if (result != CUDA_SUCCESS) return result;
  result = rows::cuEventRecord::at(place, {event, stream});
  if (result == CUDA_SUCCESS) result = wait(event);
  (void)rows::cuEventDestroy_v2::at(place, {event});  // the server does it behind the two
  return result;
}

CUresult order_after(Context& context, CUstream stream, Context& earlier_context, CUstream earlier) {
  return with_event(earlier_context, earlier, [&](CUevent event) {
    return rows::cuStreamWaitEvent::at({context.session, &context}, {stream, event, 0});
  });
}

CUresult give_event(Context& context, CUstream stream) {
  return with_event(context, stream, [](CUevent) { return CUDA_SUCCESS; });
}

CUresult fork(Context& context, CUstream stream, Context& side, CUstream* side_stream) {
  const CUresult result = take_stream(side, side_stream);
  return result == CUDA_SUCCESS ? order_after(side, *side_stream, context, stream) : result;
}

CUresult join(Context& context, CUstream stream, Context& side, CUstream side_stream) { return order_after(context, stream, side, side_stream); }

}  // namespace gpupool::client
