#include "client/shadows.h"

#include <algorithm>
#include <cstring>

#include "client/call.h"
#include "client/log.h"
#include "client/transfer.h"

namespace gpupool::client {
namespace {

constexpr size_t kCompared = 64;   // bytes compared at once
constexpr size_t kGap = 4096;      // equal bytes that are sent along to save a message

bool overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

// Calls found(begin, end) for each run of differing bytes; runs separated by at most `gap` equal bytes are
// combined.
template <class Found>
CUresult for_each_difference(const std::byte* a, const std::byte* b, size_t bytes, size_t gap, const Found& found) {
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

const std::byte* bytes_at(uint64_t host) { return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(host)); }

}  // namespace

Shadows& shadows() {
  static Shadows* const only = new Shadows;  // never destroyed: programs use the memory in exit handlers
  return *only;
}

void Shadows::Shadow::used_by(const Context& user, CUstream stream) {
  if (!read_only) behind.emplace(user.handle, cuda::handle_bits(stream));
}

CUresult Shadows::add(Context& context, void* host, uint64_t bytes, bool read_only, CUdeviceptr device) {
  const std::lock_guard lock(mutex_);
  Shadow shadow{.host = reinterpret_cast<uintptr_t>(host), .device = device, .bytes = bytes, .read_only = read_only, .session = context.session, .context = context.handle};
  shadow.seen.assign(bytes_at(shadow.host), bytes_at(shadow.host) + bytes);
  if (const CUresult result = push_to_device(context, device, shadow.seen.data(), bytes); result != CUDA_SUCCESS) return result;
  shadows_[shadow.host] = std::move(shadow);
  count_ = shadows_.size();
  return CUDA_SUCCESS;
}

CUdeviceptr Shadows::remove(const void* host) {
  const std::lock_guard lock(mutex_);
  const auto found = shadows_.extract(reinterpret_cast<uintptr_t>(host));
  count_ = shadows_.size();
  return found ? found.mapped().device : 0;
}

std::vector<uint64_t> Shadows::forget_context(const Context& context) {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> gone;
  std::erase_if(shadows_, [&](const auto& known) {
    const bool its = known.second.context == context.handle;
    if (its) gone.push_back(known.first);
    return its;
  });
  count_ = shadows_.size();
  return gone;
}

// While the device may be changing the copy, sends exactly the bytes that the program has changed, without
// gaps.
CUresult Shadows::push(Shadow& shadow) {
  auto* const context = handles().find_as<Context>(Kind::context, shadow.context);
  if (!context) return CUDA_SUCCESS;  // the context is being destroyed
  const std::byte* const now = bytes_at(shadow.host);
  return for_each_difference(now, shadow.seen.data(), shadow.bytes, shadow.behind.empty() ? kGap : 0, [&](size_t begin, size_t end) {
    std::memcpy(shadow.seen.data() + begin, now + begin, end - begin);
    return push_to_device(*context, shadow.device + begin, shadow.seen.data() + begin, end - begin);
  });
}

std::vector<Context*> Shadows::after_host_function() {
  const std::lock_guard lock(mutex_);
  std::vector<Context*> contexts;
  for (auto& [host, shadow] : shadows_) {
    if (const CUresult result = push(shadow); result != CUDA_SUCCESS) {
      log_error("cannot send registered memory to the server after a host function wrote it (error %d)", static_cast<int>(result));
    }
    auto* const context = handles().find_as<Context>(Kind::context, shadow.context);
    if (context) contexts.push_back(context);
  }
  return contexts;
}

CUresult Shadows::before_work(Context& context, CUstream stream) { return before_use(context, stream, 0, UINT64_MAX); }

CUresult Shadows::before_use(Context& context, CUstream stream, uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto& [host, shadow] : shadows_) {
    if (shadow.session != context.session || !overlaps(address, bytes, shadow.device, shadow.bytes)) continue;
    if (const CUresult result = push(shadow); result != CUDA_SUCCESS) return result;
    ++last_use_;
    shadow.used_by(context, stream);
  }
  return CUDA_SUCCESS;
}

CUresult Shadows::fetch(Shadow& shadow) {
  auto* const context = handles().find_as<Context>(Kind::context, shadow.context);
  CUstream own = nullptr;
  if (!context) return CUDA_SUCCESS;  // the context is being destroyed
  if (const CUresult result = internal_stream(*context, &own); result != CUDA_SUCCESS) return result;
  std::vector<std::byte> now(shadow.bytes);
  const CUresult result = copy_from_device(*shadow.session, *context, own, now.data(), shadow.device,
                                           make_rows(shadow.bytes, 1, shadow.bytes, shadow.bytes), true);
  if (result != CUDA_SUCCESS) return result;
  return for_each_difference(now.data(), shadow.seen.data(), shadow.bytes, 0, [&](size_t begin, size_t end) {
    std::memcpy(const_cast<std::byte*>(bytes_at(shadow.host)) + begin, now.data() + begin, end - begin);
    std::memcpy(shadow.seen.data() + begin, now.data() + begin, end - begin);
    return CUDA_SUCCESS;
  });
}

// `done(user)`: true if no work of this (context, stream) pair can still change the copy.
template <class Done>
CUresult Shadows::after(const Done& done) {
  const std::lock_guard lock(mutex_);
  for (auto& [host, shadow] : shadows_) {
    if (shadow.behind.empty()) continue;
    if (const CUresult result = fetch(shadow); result != CUDA_SUCCESS) return result;
    std::erase_if(shadow.behind, done);
  }
  return CUDA_SUCCESS;
}

CUresult Shadows::after_stream(Context& context, CUstream stream, uint64_t last) {
  const std::pair waited{context.handle, cuda::handle_bits(stream)};
  return after([&](const auto& user) { return last_use_ == last && user == waited; });
}

CUresult Shadows::after_context(Context& context, uint64_t last) {
  return after([&](const auto& user) { return last_use_ == last && user.first == context.handle; });
}

CUresult Shadows::after_something() {
  return after([](const auto&) { return false; });
}

bool Shadows::is_behind(uint64_t host, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(shadows_.begin(), shadows_.end(), [&](const auto& known) {
    return !known.second.behind.empty() && overlaps(host, bytes, known.second.host, known.second.bytes);
  });
}

std::optional<uint64_t> Shadows::host_of(uint64_t device) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [host, shadow] : shadows_) {
    if (device - shadow.device < shadow.bytes) return host + (device - shadow.device);
  }
  return std::nullopt;
}

}  // namespace gpupool::client
