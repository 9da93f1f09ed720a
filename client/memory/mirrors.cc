#include "client/memory/mirrors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "client/copies/transfer.h"
#include "client/memory/mirror.h"
#include "client/process/log.h"
#include "client/session/call.h"
#include "client/streams/stream.h"

namespace gpupool::client {
namespace {

constexpr uint64_t kSmallestBlock = 64 * 1024;
// Per allocation: each block may be a memory mapping of its own, and Linux allows a process 65530
// (vm.max_map_count).
constexpr uint64_t kMostBlocks = 4096;

}  // namespace

Mirrors& mirrors() {
  static Mirrors* const only = new Mirrors;  // never destroyed: programs use the memory in exit handlers
  return *only;
}

// --- Adding, removing and finding mirrors ---

Mirrors::Mirror* Mirrors::containing(uint64_t address) const {
  auto found = mirrors_.upper_bound(address);
  if (found == mirrors_.begin()) return nullptr;
  Mirror* const mirror = std::prev(found)->second.get();
  return address < mirror->end ? mirror : nullptr;
}

HostPages* Mirrors::zone(Session& session) {
  auto& zone = zones_[&session];
  if (!zone) zone = HostPages::create(session.addresses().base(), session.addresses().size(), true);
  return zone.get();
}

CUresult Mirrors::add(std::unique_ptr<Mirror> mirror, HostPages::Use use, State state) {
  mirror->block = std::max(kSmallestBlock, std::bit_ceil((mirror->end - mirror->begin) / kMostBlocks));
  mirror->states.assign((mirror->end - mirror->begin + mirror->block - 1) / mirror->block, state);
  if (!page_faults::start(handle_fault)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!mirror->pages->show(mirror->begin, mirror->end - mirror->begin, use)) {
    if (mirror->managed) mirror->pages->hide(mirror->begin, mirror->end - mirror->begin);
    // The memory remains the program's.
    else
      mirror->pages->protect(mirror->begin, mirror->end - mirror->begin, HostPages::Use::write);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  page_faults::watch(mirror->begin, mirror->end);
  Mirror& added = *mirror;
  mirrors_[added.begin] = std::move(mirror);
  note_host(added);
  any_ = true;
  return CUDA_SUCCESS;
}

CUresult Mirrors::add_managed(Session& session, Context& context, uint64_t address, uint64_t bytes,
                              Attachment attachment) {
  const std::lock_guard lock(mutex_);
  auto mirror = std::make_unique<Mirror>();
  mirror->begin = mirror->address = address;
  mirror->end = HostPages::up(address + bytes);
  mirror->ranges = {{address, address + bytes}};
  mirror->session = &session;
  mirror->context = context.handle;
  mirror->attachment = attachment;
  mirror->pages = zone(session);
  return mirror->pages ? add(std::move(mirror), HostPages::Use::write, State::fresh)
                       : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult Mirrors::add_pinned(Session& session, Context& context, uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (containing(address)) return CUDA_SUCCESS;
  auto mirror = std::make_unique<Mirror>();
  mirror->begin = mirror->address = address;
  mirror->end = HostPages::up(address + bytes);
  mirror->ranges = {{address, address + bytes}};
  mirror->managed = false;
  mirror->session = &session;
  mirror->context = context.handle;
  mirror->pages = zone(session);
  if (!mirror->pages || !page_faults::start(handle_fault)) return CUDA_ERROR_OUT_OF_MEMORY;
  // A thread that writes meanwhile blocks in its fault until the pages have been replaced.
  page_faults::watch(mirror->begin, mirror->end);
  HostPages& pages = *mirror->pages;
  if (!pages.protect(mirror->begin, mirror->end - mirror->begin, HostPages::Use::read))
    return CUDA_ERROR_OUT_OF_MEMORY;
  static const std::vector<std::byte> zeros(HostPages::page());
  for (uint64_t at = mirror->begin; at < mirror->end; at += HostPages::page()) {
    const void* const here = reinterpret_cast<const void*>(static_cast<uintptr_t>(at));
    if (std::memcmp(here, zeros.data(), zeros.size()) != 0) std::memcpy(pages.alias(at), here, zeros.size());
  }
  return add(std::move(mirror), HostPages::Use::write, State::fresh);
}

CUresult Mirrors::add_variable(Session& session, Context* context, uint64_t address, uint64_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  const Lock lock(mutex_);
  const uint64_t end = address + bytes;
  // Several variables may share a page.
  for (uint64_t at = HostPages::down(address); at < end;) {
    uint64_t next = at + HostPages::page();
    if (Mirror* const known = containing(at)) {
      next = std::min(known->end, HostPages::up(end));
      const Mirror::ByteRange range{std::max(at, address), std::min(next, end)};
      const bool again = std::any_of(
          known->ranges.begin(), known->ranges.end(),
          [&](const Mirror::ByteRange& had) { return had.begin == range.begin && had.end == range.end; });
      const size_t first = known->index(range.begin), last = known->index(range.end - 1) + 1;
      if (context) known->context = context->handle;
      if (again) {  // seen again in a new context: the program's data belonged to the old one
        if (!set(*known, first, last, State::device)) return CUDA_ERROR_OUT_OF_MEMORY;
        note_host(*known);
      } else {
        if (known->session != &session || !known->own_pages) return CUDA_ERROR_NOT_SUPPORTED;
        // Sends the program's changes of neighbouring variables first, so that the block can be fetched as a
        // whole.
        const CUresult result = known->with_host ? push(*known, first, last, State::device) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) return result;
        known->ranges.push_back(range);
      }
      at = next;
      continue;
    }
    while (next < end && !containing(next)) next += HostPages::page();
    auto mirror = std::make_unique<Mirror>();
    mirror->begin = at;
    mirror->address = address;
    mirror->end = next;
    mirror->ranges = {{std::max(at, address), std::min(next, end)}};
    mirror->session = &session;
    mirror->context = context ? context->handle : 0;
    mirror->own_pages = HostPages::create(at, next - at, false);
    mirror->pages = mirror->own_pages.get();
    if (!mirror->pages) {
      log_error(
          "cannot use a __managed__ variable: the server placed it at 0x%llx, where this program already has "
          "memory",
          static_cast<unsigned long long>(address));
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (const CUresult result = add(std::move(mirror), HostPages::Use::none, State::device);
        result != CUDA_SUCCESS)
      return result;
    at = next;
  }
  return CUDA_SUCCESS;
}

void Mirrors::drop(Map::iterator found) {
  Mirror& mirror = *found->second;
  std::erase(with_host_, &mirror);
  std::erase(of_streams_, &mirror);
  if (!mirror.own_pages) mirror.pages->hide(mirror.begin, mirror.end - mirror.begin);
  mirrors_.erase(found);
}

void Mirrors::remove(uint64_t address) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  if (const auto found = mirrors_.find(address); found != mirrors_.end()) drop(found);
}

void Mirrors::forget_context(const Context& context) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  for (auto it = mirrors_.begin(); it != mirrors_.end();) {
    const auto next = std::next(it);
    Mirror& mirror = *it->second;
    // Variables of a library keep their addresses.
    if (mirror.context == context.handle && mirror.own_pages &&
        set(mirror, 0, mirror.states.size(), State::device)) {
      note_host(mirror);
    } else if (mirror.context == context.handle) {
      drop(it);
    }
    it = next;
  }
  std::erase(contexts_, context.handle);
}

std::optional<Mirrors::About> Mirrors::find(uint64_t address) const {
  if (!any()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const Mirror* const mirror = containing(address);
  if (!mirror) return std::nullopt;
  for (const auto& range : mirror->ranges) {
    if (address >= range.begin && address < range.end)
      return About{range.begin, range.end - range.begin, mirror->session, mirror->managed};
  }
  return std::nullopt;
}

bool Mirrors::overlaps(uint64_t address, uint64_t bytes) const {
  if (!any() || bytes == 0) return false;
  const std::lock_guard lock(mutex_);
  if (containing(address)) return true;
  const auto next = mirrors_.upper_bound(address);
  return next != mirrors_.end() && next->first - address < bytes;
}

// --- State of blocks ---

void Mirrors::note_host(Mirror& mirror) {
  const bool with_host = std::any_of(mirror.states.begin(), mirror.states.end(),
                                     [](State state) { return state != State::device; });
  if (with_host == mirror.with_host) return;
  mirror.with_host = with_host;
  if (with_host)
    with_host_.push_back(&mirror);
  else
    std::erase(with_host_, &mirror);
}

bool Mirrors::set(Mirror& mirror, size_t first, size_t last, State state) {
  const HostPages::Use use = state == State::device   ? HostPages::Use::none
                             : state == State::shared ? HostPages::Use::read
                                                      : HostPages::Use::write;
  if (!mirror.pages->protect(mirror.at(first), mirror.at(last) - mirror.at(first), use)) return false;
  std::fill(mirror.states.begin() + static_cast<ptrdiff_t>(first),
            mirror.states.begin() + static_cast<ptrdiff_t>(last), state);
  if (state != State::device && !mirror.with_host) {
    mirror.with_host = true;
    with_host_.push_back(&mirror);
  }
  return true;
}

Context* Mirrors::context_of(const Mirror& mirror) const {
  if (auto* const own = handles().find_as<Context>(Kind::context, mirror.context); own && own->active)
    return own;
  // A variable that was looked up before there was a context, or before a reset.
  for (const auto& device : devices()) {
    if (device->session == mirror.session && device->primary->active) return device->primary;
  }
  for (const uint64_t handle : contexts_) {
    auto* const other = handles().find_as<Context>(Kind::context, handle);
    if (other && other->session == mirror.session && other->active) return other;
  }
  return nullptr;
}

CUresult Mirrors::send(const Mirror& mirror, Context& context, uint64_t begin, uint64_t end) {
  for (const auto& range : mirror.ranges) {
    const uint64_t from = std::max(range.begin, begin), to = std::min(range.end, end);
    if (from >= to) continue;
    if (const CUresult result = push_to_device(context, from, mirror.pages->alias(from), to - from);
        result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

// Sends the program's changes of these blocks and sets their state, `device` or `shared`. No queued work may
// still need the device's old contents.
CUresult Mirrors::push(Mirror& mirror, size_t first, size_t last, State state) {
  const std::vector<State> before(mirror.states.begin() + static_cast<ptrdiff_t>(first),
                                  mirror.states.begin() + static_cast<ptrdiff_t>(last));
  if (std::all_of(before.begin(), before.end(), [](State had) { return had == State::device; }))
    return CUDA_SUCCESS;
  Context* const context = context_of(mirror);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  // From here on the program cannot write to them.
  for (size_t at = first; at < last;) {
    size_t until = at + 1;
    const bool there = before[at - first] == State::device;
    while (until < last && (before[until - first] == State::device) == there) ++until;
    if ((!there || state == State::device) && !set(mirror, at, until, state)) return CUDA_ERROR_OUT_OF_MEMORY;
    at = until;
  }
  CUresult result = CUDA_SUCCESS;
  for (size_t at = first; at < last && result == CUDA_SUCCESS;) {
    const State had = before[at - first];
    size_t until = at + 1;
    while (until < last && before[until - first] == had) ++until;
    if (had == State::dirty) result = send(mirror, *context, mirror.at(at), mirror.at(until));
    if (had == State::fresh) {
      mirror.pages->for_each_populated(mirror.at(at), mirror.at(until), [&](uint64_t begin, uint64_t end) {
        if (result == CUDA_SUCCESS) result = send(mirror, *context, begin, end);
      });
    }
    at = until;
  }
  if (state == State::device) note_host(mirror);
  return result;
}

void Mirrors::note_context(const Context& context) {
  if (std::find(contexts_.begin(), contexts_.end(), context.handle) == contexts_.end())
    contexts_.push_back(context.handle);
}

// --- Before work of the device ---

Mirrors::Lock Mirrors::before_work(Context& context, CUstream stream, CUresult* result) {
  Lock lock(mutex_);
  *result = CUDA_SUCCESS;
  const uint64_t last_use = ++last_use_;
  context.last_mirror_use = last_use;
  note_context(context);
  const uint64_t handle = cuda::handle_bits(stream);
  std::erase_if(of_streams_, [](Mirror* mirror) {
    if (handles().find(Kind::stream, mirror->stream)) return false;
    mirror->attachment = Attachment::global;  // the stream was destroyed
    return true;
  });
  // Blocking streams synchronise with the null stream of their context, so programs use memory attached to
  // them in it too.
  const auto may_use = [&](const Mirror& mirror) {
    if (mirror.stream == handle) return true;
    if (handle != 0) return false;
    const Object* const its_stream = handles().find(Kind::stream, mirror.stream);
    return its_stream && its_stream->context == context.handle && is_blocking(mirror.stream);
  };
  for (Mirror* const mirror : of_streams_) {
    if (!may_use(*mirror)) continue;
    if (mirror->stream != handle)
      mirror->used_by_stream_only = false;
    else if (!device_may_use(*mirror))
      mirror->used_by_stream_only = true;
    mirror->last_use = last_use;
    mirror->last_use_context = context.handle;
    mirror->last_use_stream = handle;
  }
  if (with_host_.empty()) return lock;
  bool taken = false;
  for (Mirror* const mirror : std::vector<Mirror*>(with_host_)) {
    if (mirror->session != context.session || mirror->attachment == Attachment::host ||
        (mirror->attachment == Attachment::stream && !may_use(*mirror))) {
      continue;
    }
    taken = true;
    *result = push(*mirror, 0, mirror->states.size(), State::device);
    if (*result != CUDA_SUCCESS) return lock;
  }
  if (taken) page_faults::reinstall();
  return lock;
}

CUresult Mirrors::before_use(Context& context, uint64_t address, uint64_t bytes, PendingWrite* write) {
  if (!any() || bytes == 0) return CUDA_SUCCESS;
  const Lock lock(mutex_);
  note_context(context);
  CUresult result = CUDA_SUCCESS;
  for_each_part(address, bytes, [&](Mirror& mirror, size_t first, size_t last) {
    if (mirror.session != context.session) return;
    if (write) ++mirror.uses;
    if (result == CUDA_SUCCESS) result = push(mirror, first, last, write ? State::device : State::shared);
  });
  if (!write) return result;
  write->context_ = &context;
  write->address_ = address;
  write->bytes_ = bytes;
  return result;
}

// The use is numbered when the work is queued: a wait that began before has not seen it complete.
Mirrors::PendingWrite::~PendingWrite() {
  if (!context_) return;
  Mirrors& all = mirrors();
  const Lock lock(all.mutex_);
  all.for_each_part(address_, bytes_, [&](Mirror& mirror, size_t, size_t) {
    // 0: a new allocation at the address of a freed one.
    if (mirror.session != context_->session || mirror.uses == 0) return;
    --mirror.uses;
    context_->last_mirror_use = mirror.last_use = ++all.last_use_;
    mirror.used_by_stream_only = false;
    mirror.last_use_context = context_->handle;
  });
  all.queued_.notify_all();
}

uint64_t Mirrors::last_use_of(const Context& context) const {
  if (!any()) return 0;
  const Lock lock(mutex_);  // launches hold it while they are queued
  return context.last_mirror_use.load();
}

}  // namespace gpupool::client
