#include "server/worker/copies/staging.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "protocol/control/dump.pb.h"

namespace gpupool::worker {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience{100};        // time without a released chunk before more memory is allocated
constexpr milliseconds kLongestWait{10'000};  // wait at the hard limit before a copy fails
constexpr microseconds kPollChunksEvery{100};  // polling interval, because event waits have no timeout

}  // namespace

StagingChunk* Staging::take_idle(const ContextState& context, size_t size, bool registered) {
  const std::lock_guard lock(mutex_);
  for (size_t i = idle_.size(); i-- > 0;) {  // the most recently used chunk is likely in the cache
    StagingChunk* const chunk = idle_[i];
    if (registered && !chunk->registered) continue;
    if (chunk->context != &context || (size > kSmallPiece) != (chunk->size == kLargePiece)) continue;
    idle_[i] = idle_.back();
    idle_.pop_back();
    return chunk;
  }
  return nullptr;
}

bool Staging::grow(ContextState& context, size_t size, size_t limit) {
  if (total_ + kLargePiece > limit) return false;
  if (total_ + kLargePiece > std::max<uint64_t>(kLeastStagingBytes, usage_.most_queued(limit))) {
    quota::count(usage_.counters().over_quota);
    return false;
  }
  void* memory = nullptr;
  const CUresult allocated = api_.cuMemHostAlloc(&memory, kLargePiece, CU_MEMHOSTALLOC_PORTABLE);
  if (allocated != CUDA_SUCCESS) {
    refusal_ = allocated;
    return false;
  }
  const size_t piece = size > kSmallPiece ? kLargePiece : kSmallPiece;
  Block block{memory, &context, {}};
  for (size_t offset = 0; offset < kLargePiece; offset += piece) {
    block.pieces.push_back(std::make_unique<StagingChunk>(
        StagingChunk{&context, static_cast<std::byte*>(memory) + offset, piece}));
  }
  total_ += kLargePiece;
  const std::lock_guard lock(mutex_);
  for (auto& chunk : block.pieces) idle_.push_back(chunk.get());
  blocks_.push_back(std::move(block));
  return true;
}

bool Staging::shrink_others(const ContextState& context) {
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    if (block->context == &context) continue;
    const auto is_here = [&](const StagingChunk* chunk) {
      return chunk->data >= block->pieces.front()->data && chunk->data <= block->pieces.back()->data;
    };
    {
      const std::lock_guard lock(mutex_);
      if (std::count_if(idle_.begin(), idle_.end(), is_here) != static_cast<ptrdiff_t>(block->pieces.size()))
        continue;
      std::erase_if(idle_, is_here);
    }
    unregister(*block);
    api_.cuMemFreeHost(block->memory);
    blocks_.erase(block);
    total_ -= kLargePiece;
    return true;
  }
  return false;
}

bool Staging::collect() {
  bool any = false;
  for (size_t i = 0; i < busy_.size();) {
    Busy& busy = busy_[i];
    if (api_.cuEventQuery(busy.event) == CUDA_ERROR_NOT_READY) {
      ++i;
      continue;
    }
    busy.chunk->context->events->give(busy.event);
    give_back(busy.chunk);
    busy = busy_.back();
    busy_.pop_back();
    any = true;
  }
  return any;
}

StagingChunk* Staging::take_grown(ContextState& context, size_t size, size_t limit, bool registered) {
  if (registered && unregistrable_) return nullptr;
  if (registered) {
    if (StagingChunk* const chunk = take_idle(context, size, false)) return register_for_rdma(chunk);
  }
  if (!grow(context, size, limit)) return nullptr;
  StagingChunk* const chunk = take_idle(context, size, false);
  return registered ? register_for_rdma(chunk) : chunk;
}

StagingChunk* Staging::try_acquire(ContextState& context, size_t size, bool registered) {
  refusal_ = CUDA_ERROR_OUT_OF_MEMORY;
  if (StagingChunk* const chunk = take_idle(context, size, registered)) return chunk;
  if (collect()) {
    stalled_ = false;
    if (StagingChunk* const chunk = take_idle(context, size, registered)) return chunk;
  }
  return take_grown(context, size, kStagingBytes, registered);
}

StagingChunk* Staging::acquire(ContextState& context, size_t size, bool registered) {
  if (StagingChunk* const chunk = try_acquire(context, size, registered)) return chunk;
  if (registered && registered_ == 0) return nullptr;
  if (refusal_ != CUDA_ERROR_OUT_OF_MEMORY) return nullptr;  // the context cannot be used any more
  StagingChunk* chunk = nullptr;
  if (stalled_ && (chunk = take_grown(context, size, kMaxStagingBytes, registered))) return chunk;
  if (shrink_others(context) && (chunk = take_grown(context, size, kStagingBytes, registered))) return chunk;
  const Waiting waiting("staging memory");
  const auto start = Clock::now();
  context.for_each_stream([this](StreamState& stream) { close_slab(stream); });
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const size_t before = idle_.size();
      returned_.wait_for(lock, kPollChunksEvery, [&] { return idle_.size() != before; });
    }
    collect();
    if ((chunk = take_idle(context, size, registered))) return chunk;
    const auto waited = Clock::now() - start;
    stalled_ = waited >= kPatience;
    if (stalled_ && (chunk = take_grown(context, size, kMaxStagingBytes, registered))) return chunk;
    if (waited >= kLongestWait) return nullptr;
  }
}

StagingChunk* Staging::register_for_rdma(StagingChunk* chunk) {
  const auto region = direct_memory_->add(chunk->data, chunk->size, transport::DirectMemory::Access::local);
  unregistrable_ = !region;
  if (!region) {
    give_back(chunk);
    return nullptr;
  }
  ++registered_;
  chunk->registered = *region;
  return chunk;
}

void Staging::unregister(const Block& block) {
  for (const auto& piece : block.pieces) {
    if (!piece->registered) continue;
    direct_memory_->remove(*piece->registered);
    unregistrable_ = false;
    --registered_;
  }
}

void Staging::give_back(StagingChunk* chunk) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(chunk);
  }
  returned_.notify_one();
}

void Staging::keep_until(StagingChunk* chunk, StreamState& stream) {
  const CUevent event = chunk->context->events->take();
  if (event && api_.cuEventRecord(event, stream.stream) == CUDA_SUCCESS) {
    busy_.push_back({chunk, event});
    return;
  }
  if (event) chunk->context->events->give(event);
  // No event available, or the context is broken and nothing runs any more.
  api_.cuStreamSynchronize(stream.stream);
  give_back(chunk);
}

std::byte* Staging::slab_place(StreamState& stream, size_t size) {
  if (!stream.slab || stream.slab_used + size > stream.slab->size) {
    close_slab(stream);
    stream.slab = acquire(*stream.context, kSmallPiece);
    stream.slab_used = 0;
    if (!stream.slab) return nullptr;
  }
  std::byte* const place = stream.slab->data + stream.slab_used;
  stream.slab_used += (size + 63) / 64 * 64;
  return place;
}

void Staging::close_slab(StreamState& stream) {
  if (!stream.slab) return;
  StagingChunk* const chunk = std::exchange(stream.slab, nullptr);
  if (std::exchange(stream.slab_used, 0) == 0)
    give_back(chunk);
  else
    keep_until(chunk, stream);
}

void Staging::describe(admin::WorkerDump& dump) {
  const std::lock_guard lock(mutex_);
  size_t idle = 0;
  for (const StagingChunk* const chunk : idle_) idle += chunk->size;
  const size_t total = total_.load(std::memory_order_relaxed);
  dump.set_staging_bytes(total);
  dump.set_staging_used_bytes(total - std::min(total, idle));
}

void Staging::drop_context(ContextState& context, bool gone) {
  for (const Busy& busy : busy_) {
    if (busy.chunk->context == &context && !gone) context.events->give(busy.event);
  }
  std::erase_if(busy_, [&](const Busy& busy) { return busy.chunk->context == &context; });
  context.for_each_stream([](StreamState& stream) {
    stream.slab = nullptr;
    stream.slab_used = 0;
  });
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(idle_, [&](const StagingChunk* chunk) { return chunk->context == &context; });
  }
  std::erase_if(blocks_, [&](const Block& block) {
    if (block.context != &context) return false;
    unregister(block);
    if (!gone) api_.cuMemFreeHost(block.memory);
    total_ -= kLargePiece;
    return true;
  });
}

}  // namespace gpupool::worker
