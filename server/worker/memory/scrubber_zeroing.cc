// Zeroing while the executor continues with other commands.
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "protocol/calls/array_bytes.h"
#include "server/worker/memory/scrubber.h"

namespace gpupool::worker {
namespace {

// Most memory is zero before a thread could be woken.
constexpr std::chrono::microseconds kLongestPoll{50};
constexpr size_t kZeros = 4u << 20;  // bytes; no row of an array is longer

// Copies zeros from host memory. Unlike fills and copies within the device, these copies do not queue behind
// kernels.
CUresult zero_array(const DeviceApi& api, const Scrubber::Part& part, const void* zeros, CUstream stream) {
  const auto& shape = part.shape;
  const size_t row = shape.Width * cuda::texel_bytes(shape.Format, shape.NumChannels);
  const size_t height = std::max<size_t>(shape.Height, 1), depth = std::max<size_t>(shape.Depth, 1);
  if (row == 0 || row > kZeros) return CUDA_ERROR_INVALID_VALUE;
  const size_t rows = std::min(height, kZeros / row);  // per copy
  const size_t slices = rows == height ? std::min(depth, kZeros / (row * height)) : 1;
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = zeros;
  copy.srcPitch = copy.WidthInBytes = row;
  copy.srcHeight = rows;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = part.array;
  for (copy.dstZ = 0; copy.dstZ < depth; copy.dstZ += slices) {
    copy.Depth = std::min(slices, depth - copy.dstZ);
    for (copy.dstY = 0; copy.dstY < height; copy.dstY += rows) {
      copy.Height = std::min(rows, height - copy.dstY);
      const CUresult result = api.cuMemcpy3DAsync_v2(&copy, stream);
      if (result != CUDA_SUCCESS) return result;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

// Uses pinned memory if possible, because the driver blocks in copies of pageable memory.
const void* Scrubber::zeros(int device) {
  static const std::vector<std::byte> pageable(kZeros);
  ContextState* const context = contexts_.find_on(device);
  if (!context || !api_.cuMemHostAlloc || !api_.cuMemFreeHost) return pageable.data();
  if (!context->zeros) {
    const VisitContext visit(api_, context->object);
    if (visit.result() != CUDA_SUCCESS || api_.cuMemHostAlloc(&context->zeros, kZeros, 0) != CUDA_SUCCESS)
      return context->zeros = nullptr, pageable.data();
    std::fill_n(static_cast<std::byte*>(context->zeros), kZeros, std::byte{0});
  }
  return context->zeros;
}

CUresult Scrubber::zero(const std::vector<Part>& parts, int device, Complete complete) {
  if (api_.zeroes_memory) return complete(CUDA_SUCCESS);
  if (!api_.cuMemcpy3DAsync_v2) return complete(CUDA_ERROR_NOT_SUPPORTED);
  const void* const from = zeros(device);
  const auto work = [&](CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    for (const Part& part : parts) {
      if (result == CUDA_SUCCESS) result = zero_array(api_, part, from, stream);
    }
    return result;
  };
  return run_later(
      device, work, [] {}, std::move(complete));
}

CUresult Scrubber::zero_unmapped(CUmemGenericAllocationHandle memory, uint64_t size, CUmemLocation location,
                                 Complete complete) {
  if (api_.zeroes_memory) return complete(CUDA_SUCCESS);
  if (!api_.cuMemsetD8Async) return complete(CUDA_ERROR_NOT_SUPPORTED);
  CUdeviceptr place = 0;
  if (const CUresult result = map_somewhere(memory, size, location, &place); result != CUDA_SUCCESS)
    return complete(result);
  const auto work = [&](CUstream stream) { return api_.cuMemsetD8Async(place, 0, size, stream); };
  return run_later(
      location.id, work, [this, place, size] { unmap_there(place, size); }, std::move(complete));
}

CUresult Scrubber::run_later(int device, const Work& work, std::function<void()> undo, Complete complete) {
  ContextState* const context = contexts_.find_on(device);
  CUresult result = CUDA_SUCCESS;
  std::shared_ptr<Mark> mark;
  if (context)
    mark = begin(*context, work, &result);
  else
    result = run(device, work);
  if (mark && !passed_soon(*mark, context->object) && await(mark, context->object)) {
    jobs_.push_back({std::move(mark), context->object, std::move(undo), std::move(complete), postpone_()});
    return CUDA_SUCCESS;
  }
  if (mark) result = mark->result;
  undo();
  return complete(result);
}

std::shared_ptr<Scrubber::Mark> Scrubber::begin(ContextState& context, const Work& work, CUresult* result) {
  const VisitContext visit(api_, context.object);
  *result = visit.result();
  if (*result == CUDA_SUCCESS)
    *result = api_.cuStreamCreate ? make_stream(context) : CUDA_ERROR_NOT_SUPPORTED;
  if (*result != CUDA_SUCCESS) return nullptr;
  *result = work(context.scrubbing);
  const auto pool = context.events;
  const CUevent event = *result == CUDA_SUCCESS ? pool->take() : nullptr;
  auto mark = std::make_shared<Mark>();
  mark->event = std::shared_ptr<void>(event, [pool](void* lent) {
    if (lent) pool->give(static_cast<CUevent>(lent));
  });
  if (event && api_.cuEventRecord(event, context.scrubbing) == CUDA_SUCCESS) return mark;
  // Part of the work may be on the device already; the memory must not be freed before it ends.
  const CUresult ended = api_.cuStreamSynchronize(context.scrubbing);
  if (*result == CUDA_SUCCESS) *result = ended;
  return nullptr;
}

bool Scrubber::passed_soon(Mark& mark, CUcontext context) {
  const VisitContext visit(api_, context);
  const auto stop = std::chrono::steady_clock::now() + kLongestPoll;
  do {
    mark.result = api_.cuEventQuery(static_cast<CUevent>(mark.event.get()));
    if (mark.result != CUDA_ERROR_NOT_READY) return true;
  } while (std::chrono::steady_clock::now() < stop);
  return false;
}

// Returns false if no wait thread was available; the calling executor has waited then.
bool Scrubber::await(const std::shared_ptr<Mark>& mark, CUcontext context) {
  const bool begun =
      waits_.submit(context, "new memory to be zeroed", [this, mark = mark, context]() mutable {
        make_current(api_, context);
        mark->result = api_.cuEventSynchronize(static_cast<CUevent>(mark->event.get()));
        make_current(api_, nullptr);
        mark->passed.store(true, std::memory_order_release);
        mark.reset();
        any_done_.store(true);
        wake_();
      });
  if (begun) return true;
  const VisitContext visit(api_, context);
  mark->result = api_.cuEventSynchronize(static_cast<CUevent>(mark->event.get()));
  return false;
}

void Scrubber::finish_done() {
  // The exchange makes all earlier `passed` flags visible below.
  any_done_.exchange(false, std::memory_order_acq_rel);
  std::list<Job> done;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto next = std::next(job);
    if (job->mark->passed.load(std::memory_order_acquire)) done.splice(done.end(), jobs_, job);
    job = next;
  }
  for (Job& job : done) finish(job, job.mark->result);
}

void Scrubber::finish_all() {
  const Waiting waiting("new memory to be zeroed");
  for (std::list<Job> all = std::move(jobs_); Job & job : all) {
    const bool passed = job.mark->passed.load(std::memory_order_acquire);
    const VisitContext visit(api_, job.context);
    finish(job,
           passed ? job.mark->result : api_.cuEventSynchronize(static_cast<CUevent>(job.mark->event.get())));
  }
}

void Scrubber::finish(Job& job, CUresult result) {
  const VisitContext visit(api_, job.context);
  job.undo();
  job.answer(job.complete(result));
}

}  // namespace gpupool::worker
