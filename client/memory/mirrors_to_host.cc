// Mirrors: moving blocks to the host, for a fault or on request.
#include <algorithm>

#include "client/copies/transfer.h"
#include "client/memory/mirror.h"
#include "client/process/log.h"
#include "client/session/call.h"
#include "client/streams/cross_server.h"
#include "protocol/calls/errors.h"

namespace gpupool::client {
namespace {

constexpr uint64_t kMostAhead = 8 * 1024 * 1024;  // bytes fetched for one access

using page_faults::Access;
using page_faults::Answer;

}  // namespace

CUresult Mirrors::fetch(Mirror& mirror, size_t first, size_t last) {
  Context* const context = context_of(mirror);
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  CUstream own = nullptr;
  if (const CUresult result = internal_stream(*context, &own); result != CUDA_SUCCESS) return result;
  for (const auto& range : mirror.ranges) {
    const uint64_t begin = std::max(range.begin, mirror.at(first)),
                   end = std::min(range.end, mirror.at(last));
    if (begin >= end) continue;
    const Rows rows = make_rows(end - begin, 1, end - begin, end - begin);
    const CUresult result =
        copy_from_device(*mirror.session, *context, own, mirror.pages->alias(begin), begin, rows, true);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void Mirrors::note_completed(Context& context, uint64_t before) {
  uint64_t known = context.completed_mirror_use.load();
  while (known < before && !context.completed_mirror_use.compare_exchange_weak(known, before)) {
  }
}

// True if the device may still be using the memory. `but`: ignores the work of this context.
bool Mirrors::device_may_use(const Mirror& mirror, const Context* but) const {
  if (mirror.uses != 0) return true;
  const auto may_use = [&](const Context* context, uint64_t last_use) {
    return context && context != but && context->completed_mirror_use.load() < last_use;
  };
  if (mirror.attachment != Attachment::global) {
    return may_use(handles().find_as<Context>(Kind::context, mirror.last_use_context), mirror.last_use);
  }
  return std::any_of(contexts_.begin(), contexts_.end(), [&](uint64_t handle) {
    const auto* const context = handles().find_as<Context>(Kind::context, handle);
    return context && context->session == mirror.session && may_use(context, context->last_mirror_use.load());
  });
}

// Releases the lock while waiting, so the mirror may have been replaced afterwards.
CUresult Mirrors::wait_for_device(Lock& lock, uint64_t address) {
  queued_.wait(lock, [&] {
    const Mirror* const used = containing(address);
    return !used || used->uses == 0;
  });
  const Mirror* const mirror = containing(address);
  if (!mirror || !device_may_use(*mirror)) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  const auto settle = [&](Context& context, CUresult got) {
    // An earlier command's error is reported by the context's next call.
    if (got != CUDA_SUCCESS && got != Session::failure() && !cuda::is_sticky(got))
      context.late_error = got;
    else if (got != CUDA_SUCCESS)
      result = got;
  };
  auto* const last = handles().find_as<Context>(Kind::context, mirror->last_use_context);
  if (mirror->attachment != Attachment::global && mirror->used_by_stream_only && last &&
      handles().find(Kind::stream, mirror->last_use_stream)) {
    const uint64_t last_use = mirror->last_use, stream = mirror->last_use_stream;
    lock.unlock();
    settle(*last, synchronize_stream(*last, cuda::handle_from_bits<CUstream>(stream)));
    lock.lock();
    if (Mirror* const now = containing(address); now && now->last_use == last_use) now->last_use = 0;
    return result;
  }
  const Session* const session = mirror->session;
  const std::vector<uint64_t> contexts = contexts_;
  lock.unlock();
  for (const uint64_t handle : contexts) {
    auto* const context = handles().find_as<Context>(Kind::context, handle);
    if (!context || context->session != session ||
        context->completed_mirror_use.load() >= context->last_mirror_use.load())
      continue;
    settle(*context, synchronize_context(*context));
  }
  lock.lock();
  return result;
}

Answer Mirrors::handle_fault(uint64_t address, Access access, bool in_host_function) {
  try {
    return mirrors().fetch_block(address, access, !in_host_function);
  } catch (const std::exception& error) {
    log_error("cannot fetch managed memory: %s", error.what());
    return Answer::unavailable;
  }
}

Answer Mirrors::fetch_block(uint64_t address, Access access, bool wait) {
  Lock lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  const Mirror* const there = containing(address);
  if (!there) return Answer::not_ours;
  if (wait && there->states[there->index(address)] == State::device) result = wait_for_device(lock, address);
  Mirror* const mirror = containing(address);
  if (!mirror) return Answer::not_ours;
  const size_t index = mirror->index(address);
  const State state = mirror->states[index];
  // Another thread's fault has fetched it.
  if (state == State::dirty || state == State::fresh) return Answer::served;
  if (state == State::shared && access == Access::read) return Answer::served;
  mirror->ahead = index == mirror->next
                      ? std::min(mirror->ahead * 2, std::max<size_t>(1, kMostAhead / mirror->block))
                      : 1;
  size_t last = index + 1;
  while (last < mirror->states.size() && last - index < mirror->ahead && mirror->states[last] == state)
    ++last;
  mirror->next = last;
  if (state == State::device && result == CUDA_SUCCESS) result = fetch(*mirror, index, last);
  if (result == Session::failure()) {
    log_error("managed memory is lost: it was on a server whose connection is lost");
    return Answer::unavailable;
  }
  // After a sticky error the program sees the old contents, and gets the error at its next call.
  if (result != CUDA_SUCCESS) {
    log_error("cannot fetch managed memory (error %d): the program sees its old contents",
              static_cast<int>(result));
  }
  const bool writes = access == Access::write || state == State::shared;
  if (set(*mirror, index, last, writes ? State::dirty : State::shared)) {
    if (!wait) note_fetched_for_host_function(*mirror, index, last);
    return Answer::served;
  }
  log_error("cannot fetch managed memory: too many memory mappings; raise vm.max_map_count");
  return Answer::unavailable;
}

void Mirrors::note_fetched_for_host_function(const Mirror& mirror, size_t first, size_t last) {
  fetched_for_host_functions_.emplace_back(mirror.at(first), mirror.at(last));
  if (const Context* const context = context_of(mirror)) fetching_contexts_.insert(context->handle);
}

// Another thread's host function may have sent blocks that this one used, so this returns all contexts that
// ever fetched one.
std::vector<Context*> Mirrors::after_host_function() {
  const Lock lock(mutex_);
  for (const auto& [begin, end] : std::exchange(fetched_for_host_functions_, {})) {
    for_each_part(begin, end - begin, [&](Mirror& mirror, size_t first, size_t last) {
      const CUresult result =
          push(mirror, first, last, device_may_use(mirror) ? State::device : State::shared);
      if (result != CUDA_SUCCESS)
        log_error("cannot send managed memory to the server after a host function used it (error %d)",
                  static_cast<int>(result));
    });
  }
  std::vector<Context*> contexts;
  for (const uint64_t handle : fetching_contexts_) {
    if (auto* const context = handles().find_as<Context>(Kind::context, handle)) contexts.push_back(context);
  }
  return contexts;
}

CUresult Mirrors::fetch_to_host(Context& context, CUstream stream, uint64_t address, uint64_t bytes) {
  CUresult result = synchronize_stream(context, stream);
  Lock lock(mutex_);
  // Data of `before_all` copies may still be in flight, and other streams may be using the memory.
  std::vector<uint64_t> parts;
  for_each_part(address, bytes, [&](const Mirror& mirror, size_t first, size_t last) {
    const auto begin = mirror.states.begin();
    const auto end = begin + static_cast<ptrdiff_t>(last);
    if (std::find(begin + static_cast<ptrdiff_t>(first), end, State::device) != end)
      parts.push_back(mirror.at(first));
  });
  for (const uint64_t part : parts) {
    if (result == CUDA_SUCCESS) result = wait_for_device(lock, part);
  }
  for_each_part(address, bytes, [&](Mirror& mirror, size_t first, size_t last) {
    for (size_t at = first; at < last && result == CUDA_SUCCESS;) {
      const State state = mirror.states[at];
      size_t until = at + 1;
      while (until < last && mirror.states[until] == state) ++until;
      if (state == State::device) result = fetch(mirror, at, until);
      if (state != State::fresh && result == CUDA_SUCCESS && !set(mirror, at, until, State::dirty))
        result = CUDA_ERROR_OUT_OF_MEMORY;
      at = until;
    }
  });
  return result;
}

CUresult Mirrors::attach(const Context& context, CUstream stream, uint64_t address, Attachment attachment) {
  Lock lock(mutex_);
  if (!containing(address)) return CUDA_ERROR_INVALID_VALUE;
  // The program's next access must wait for work that was queued before this call. Only one context's work
  // can be noted, so wait for the others' now.
  if (device_may_use(*containing(address), &context)) {
    if (const CUresult result = wait_for_device(lock, address); result != CUDA_SUCCESS) return result;
  }
  Mirror* const mirror = containing(address);
  if (!mirror) return CUDA_ERROR_INVALID_VALUE;
  std::erase(of_streams_, mirror);
  const bool stays_with_stream =
      mirror->attachment != Attachment::global && mirror->used_by_stream_only &&
      (attachment != Attachment::stream || mirror->last_use_stream == cuda::handle_bits(stream));
  if (!stays_with_stream) {
    mirror->last_use = device_may_use(*mirror) ? context.last_mirror_use.load() : 0;
    mirror->last_use_context = context.handle;
    mirror->used_by_stream_only = false;
  }
  mirror->attachment = attachment;
  mirror->stream = cuda::handle_bits(stream);
  if (attachment == Attachment::stream) of_streams_.push_back(mirror);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client
