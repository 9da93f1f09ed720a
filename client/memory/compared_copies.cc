#include "client/memory/compared_copies.h"

#include <algorithm>
#include <cstring>

#include "client/copies/transfer.h"
#include "client/process/log.h"
#include "client/session/call.h"

namespace gpupool::client {
namespace {

constexpr size_t kCompared = 64;  // bytes compared at once
constexpr size_t kGap = 4096;     // equal bytes that are sent along to save a message

bool overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Calls found(begin, end) for each run of differing bytes; runs separated by at most `gap` equal bytes are
// combined.
template <class Found>
CUresult for_each_difference(const std::byte* a, const std::byte* b, size_t bytes, size_t gap,
                             const Found& found) {
  size_t begin = bytes, end = 0;  // of the current run
  for (size_t block = 0; block < bytes; block += kCompared) {
    const size_t until = std::min(block + kCompared, bytes);
    if (std::memcmp(a + block, b + block, until - block) == 0) continue;
    for (size_t at = block; at < until; ++at) {
      if (a[at] == b[at]) continue;
      if (begin < end && at - end > gap) {
        if (const CUresult result = found(begin, end); result != CUDA_SUCCESS) return result;
        begin = bytes;
      }
      begin = std::min(begin, at);
      end = at + 1;
    }
  }
  return begin < end ? found(begin, end) : CUDA_SUCCESS;
}

const std::byte* bytes_at(uint64_t host) {
  return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(host));
}

}  // namespace

ComparedCopies& compared_copies() {
  static ComparedCopies* const only =
      new ComparedCopies;  // never destroyed: programs use the memory in exit handlers
  return *only;
}

void ComparedCopies::Copy::used_by(const Context& user, CUstream stream) {
  if (!read_only) pending_writers.emplace(user.handle, cuda::handle_bits(stream));
}

CUresult ComparedCopies::add(Context& context, void* host, uint64_t bytes, bool read_only,
                             CUdeviceptr device) {
  const std::lock_guard lock(mutex_);
  Copy copy{.host = reinterpret_cast<uintptr_t>(host),
            .device = device,
            .bytes = bytes,
            .read_only = read_only,
            .session = context.session,
            .context = context.handle};
  copy.seen.assign(bytes_at(copy.host), bytes_at(copy.host) + bytes);
  if (const CUresult result = push_to_device(context, device, copy.seen.data(), bytes);
      result != CUDA_SUCCESS)
    return result;
  copies_[copy.host] = std::move(copy);
  count_ = copies_.size();
  return CUDA_SUCCESS;
}

CUdeviceptr ComparedCopies::remove(const void* host) {
  const std::lock_guard lock(mutex_);
  const auto found = copies_.extract(reinterpret_cast<uintptr_t>(host));
  count_ = copies_.size();
  return found ? found.mapped().device : 0;
}

std::vector<uint64_t> ComparedCopies::forget_context(const Context& context) {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> gone;
  std::erase_if(copies_, [&](const auto& known) {
    const bool its = known.second.context == context.handle;
    if (its) gone.push_back(known.first);
    return its;
  });
  count_ = copies_.size();
  return gone;
}

// While the device may be changing the copy, sends exactly the bytes that the program has changed, without
// gaps.
CUresult ComparedCopies::push(Copy& copy) {
  auto* const context = handles().find_as<Context>(Kind::context, copy.context);
  if (!context) return CUDA_SUCCESS;  // the context is being destroyed
  const std::byte* const now = bytes_at(copy.host);
  return for_each_difference(now, copy.seen.data(), copy.bytes, copy.pending_writers.empty() ? kGap : 0,
                             [&](size_t begin, size_t end) {
                               std::memcpy(copy.seen.data() + begin, now + begin, end - begin);
                               return push_to_device(*context, copy.device + begin, copy.seen.data() + begin,
                                                     end - begin);
                             });
}

std::vector<Context*> ComparedCopies::after_host_function() {
  const std::lock_guard lock(mutex_);
  std::vector<Context*> contexts;
  for (auto& [host, copy] : copies_) {
    if (const CUresult result = push(copy); result != CUDA_SUCCESS) {
      log_error("cannot send registered memory to the server after a host function wrote it (error %d)",
                static_cast<int>(result));
    }
    auto* const context = handles().find_as<Context>(Kind::context, copy.context);
    if (context) contexts.push_back(context);
  }
  return contexts;
}

CUresult ComparedCopies::before_work(Context& context, CUstream stream) {
  return before_use(context, stream, 0, UINT64_MAX);
}

CUresult ComparedCopies::before_use(Context& context, CUstream stream, uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto& [host, copy] : copies_) {
    if (copy.session != context.session || !overlaps(address, bytes, copy.device, copy.bytes)) continue;
    if (const CUresult result = push(copy); result != CUDA_SUCCESS) return result;
    ++last_use_;
    copy.used_by(context, stream);
  }
  return CUDA_SUCCESS;
}

CUresult ComparedCopies::fetch(Copy& copy) {
  auto* const context = handles().find_as<Context>(Kind::context, copy.context);
  CUstream own = nullptr;
  if (!context) return CUDA_SUCCESS;  // the context is being destroyed
  if (const CUresult result = internal_stream(*context, &own); result != CUDA_SUCCESS) return result;
  std::vector<std::byte> now(copy.bytes);
  const CUresult result = copy_from_device(*copy.session, *context, own, now.data(), copy.device,
                                           make_rows(copy.bytes, 1, copy.bytes, copy.bytes), true);
  if (result != CUDA_SUCCESS) return result;
  return for_each_difference(now.data(), copy.seen.data(), copy.bytes, 0, [&](size_t begin, size_t end) {
    std::memcpy(const_cast<std::byte*>(bytes_at(copy.host)) + begin, now.data() + begin, end - begin);
    std::memcpy(copy.seen.data() + begin, now.data() + begin, end - begin);
    return CUDA_SUCCESS;
  });
}

// `done(user)`: true if no work of this (context, stream) pair can still change the copy.
template <class Done>
CUresult ComparedCopies::after(const Done& done) {
  const std::lock_guard lock(mutex_);
  for (auto& [host, copy] : copies_) {
    if (copy.pending_writers.empty()) continue;
    if (const CUresult result = fetch(copy); result != CUDA_SUCCESS) return result;
    std::erase_if(copy.pending_writers, done);
  }
  return CUDA_SUCCESS;
}

CUresult ComparedCopies::after_stream(Context& context, CUstream stream, uint64_t last) {
  const std::pair waited{context.handle, cuda::handle_bits(stream)};
  return after([&](const auto& user) { return last_use_ == last && user == waited; });
}

CUresult ComparedCopies::after_context(Context& context, uint64_t last) {
  return after([&](const auto& user) { return last_use_ == last && user.first == context.handle; });
}

CUresult ComparedCopies::after_other_wait() {
  return after([](const auto&) { return false; });
}

bool ComparedCopies::device_may_be_newer(uint64_t host, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(copies_.begin(), copies_.end(), [&](const auto& known) {
    return !known.second.pending_writers.empty() &&
           overlaps(host, bytes, known.second.host, known.second.bytes);
  });
}

std::optional<uint64_t> ComparedCopies::host_of(uint64_t device) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [host, copy] : copies_) {
    if (device - copy.device < copy.bytes) return host + (device - copy.device);
  }
  return std::nullopt;
}

}  // namespace gpupool::client
