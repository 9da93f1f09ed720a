#include "server/worker/memory/memory_charges.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace gpupool::worker {
namespace {

// Granularity of allocations in device memory; no allocator uses less.
constexpr uint64_t kRounding = 512;
// Upper limit of a context's size: memory that other processes allocate meanwhile looks like the context's.
constexpr uint64_t kMostOfContext = uint64_t{1} << 30;

}  // namespace

// A process without a context on the device is not listed there, so it used nothing before.
uint64_t context_growth(const MemoryUse& before, const MemoryUse& after, uint64_t freed) {
  if (after.process) return *after.process - std::min(*after.process, before.process.value_or(0));
  // Without a measurement before, all memory in use may be the context's.
  const uint64_t had = before.device.value_or(0), has = after.device.value_or(0);
  const uint64_t should_have = had - std::min(had, freed);
  return std::min(has - std::min(has, should_have), kMostOfContext);
}

MemoryCharges::PendingContext::PendingContext(MemoryCharges& all, int device) : all_(all), device_(device) {
  const uint64_t libraries = all.libraries();
  // A new context's work is not ordered after pending clears of another context.
  result_ = all.contexts_.await_clears();
  if (result_ == CUDA_SUCCESS) result_ = all.memory_.charge(device, libraries);
  if (result_ != CUDA_SUCCESS) return;
  charged_ = libraries;
  // Others release their charge after the device has freed. So the charges are read first, and last in
  // measure(): what is freed in between is in both differences.
  others_before_ = all.ledger_.used_by_others(device);
  const ContextState* const another = all.contexts_.find_on(device);
  before_ = all.used_on(device, another ? another->object : nullptr);
  by_context_ = another || !before_.device;
}

MemoryCharges::PendingContext::~PendingContext() {
  all_.memory_.uncharge(device_, charged_);
}

CUresult MemoryCharges::PendingContext::measure(CUcontext made, uint64_t earlier) {
  const MemoryUse after = all_.used_on(device_, by_context_ ? made : nullptr);
  const uint64_t others = all_.ledger_.used_by_others(device_);
  const uint64_t taken =
      earlier + context_growth(before_, after, others_before_ - std::min(others_before_, others));
  if (const CUresult result = all_.memory_.charge(device_, taken); result != CUDA_SUCCESS) {
    all_.log_refusal(device_, taken);
    return result;
  }
  charged_ += taken;
  return CUDA_SUCCESS;
}

void MemoryCharges::PendingContext::transfer_to(ContextState& context) {
  context.charged = std::exchange(charged_, 0);
}

cuda::DeviceUse MemoryCharges::use_of(const cuda::Image& image, int device) const {
  int major = 0, minor = 0;
  if (!api_.cuDeviceGetAttribute ||
      api_.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) !=
          CUDA_SUCCESS ||
      api_.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) !=
          CUDA_SUCCESS) {
    return {};
  }
  cuda::DeviceUse use = cuda::device_use(image, major, minor);
  if (use.bytes <= UINT64_MAX - kRounding) use.bytes = (use.bytes + kRounding - 1) / kRounding * kRounding;
  return use;
}

CUresult MemoryCharges::add_module(uint64_t handle, const cuda::Image& image) {
  if (images_.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  const ContextState* const context = contexts_.current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  const cuda::DeviceUse use = use_of(image, context->device);
  const Image added{use.bytes, context->device, use.launches_kernels};
  if (const CUresult result = memory_.charge(added.device, added.bytes); result != CUDA_SUCCESS)
    return result;
  images_[handle] = added;
  return CUDA_SUCCESS;
}

CUresult MemoryCharges::add_library(uint64_t handle, const cuda::Image& image) {
  if (images_.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  const ContextState* const context = contexts_.current();
  const cuda::DeviceUse use = use_of(image, context ? context->device : 0);
  const Image added{use.bytes, -1, use.launches_kernels};
  std::vector<ContextState*> charged;
  for (auto& [of, in] : contexts_.all()) {
    const CUresult result = memory_.charge(in->device, added.bytes);
    if (result == CUDA_SUCCESS) {
      charged.push_back(in.get());
      continue;
    }
    for (const ContextState* const back : charged) memory_.uncharge(back->device, added.bytes);
    return result;
  }
  for (ContextState* const in : charged) in->charged += added.bytes;
  images_[handle] = added;
  return CUDA_SUCCESS;
}

void MemoryCharges::forget_image(uint64_t handle) {
  const auto known = images_.find(handle);
  if (known == images_.end()) return;
  const Image gone = known->second;
  images_.erase(known);
  if (gone.device >= 0) return memory_.uncharge(gone.device, gone.bytes);
  for (auto& [of, in] : contexts_.all()) {
    memory_.uncharge(in->device, gone.bytes);
    in->charged -= gone.bytes;
  }
}

uint64_t MemoryCharges::libraries() const {
  uint64_t sum = 0;
  for (const auto& [handle, image] : images_) {
    if (image.device < 0 && __builtin_add_overflow(sum, image.bytes, &sum)) return UINT64_MAX;
  }
  return sum;
}

namespace {

// Size of a pending launch by a kernel: up to 32,764 bytes of parameters, a descriptor, and two events.
constexpr uint64_t kPendingLaunchBytes = 40 * 1024;

// Device memory that the driver allocates for a limit of a context. nullopt: unknown.
std::optional<uint64_t> cost_of_limit(CUlimit limit, uint64_t value) {
  switch (limit) {
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE: return value;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      return value > UINT64_MAX / kPendingLaunchBytes ? UINT64_MAX : value * kPendingLaunchBytes;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: return 0;
    default: return std::nullopt;  // CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH and future limits
  }
}

}  // namespace

CUresult MemoryCharges::set_limit(CUlimit limit, size_t value) {
  if (!contexts_.current()) return CUDA_ERROR_INVALID_CONTEXT;
  ContextState& context = contexts_.current()->owner();
  if (!api_.cuCtxSetLimit || !api_.cuCtxGetLimit) return CUDA_ERROR_NOT_SUPPORTED;
  if (limit == CU_LIMIT_STACK_SIZE) return set_stack_limit(context, value);
  auto known = context.limits.find(limit);
  if (known == context.limits.end()) {
    size_t at_first = 0;  // included in the size of the new context
    const CUresult result = api_.cuCtxGetLimit(&at_first, limit);
    if (result != CUDA_SUCCESS) return result;
    known = context.limits.emplace(limit, ContextState::Limit{at_first, 0}).first;
  }
  const auto before = cost_of_limit(limit, known->second.at_first), now = cost_of_limit(limit, value);
  if (!now && value > known->second.at_first && ledger_.room(context.device)) {
    ledger_.note_refusal(context.device, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const uint64_t charge = now && *now > *before ? *now - *before : 0, charged = known->second.charged;
  if (charge > charged) {
    const CUresult result = memory_.charge(context.device, charge - charged);
    if (result != CUDA_SUCCESS) return result;
  }
  const CUresult result = api_.cuCtxSetLimit(limit, value);
  if (result != CUDA_SUCCESS) {
    if (charge > charged) memory_.uncharge(context.device, charge - charged);
    return result;
  }
  if (charge < charged) memory_.uncharge(context.device, charged - charge);
  context.charged = context.charged - charged + charge;
  known->second.charged = charge;
  return result;
}

MemoryUse MemoryCharges::used_on(int device, CUcontext context) {
  MemoryUse use = start_.memory_use ? start_.memory_use(device) : MemoryUse{};
  if (use.process || !context || !api_.cuMemGetInfo_v2) return use;
  const CUcontext before = current_context();
  size_t free = 0, total = 0;
  const bool told =
      make_current(api_, context) == CUDA_SUCCESS && api_.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS;
  make_current(api_, before);
  if (told && free <= total) use.device = total - free;
  return use;
}

void MemoryCharges::log_refusal(int device, uint64_t context_bytes) const {
  const auto room = ledger_.room(device);
  log::warning("context_exceeds_quota",
               {{"session", start_.session_number},
                {"gpu", device},
                {"context_bytes", context_bytes},
                {"quota_bytes", room ? room->limit : 0},
                {"free_bytes", room ? room->free : 0},
                {"advice", "raise the tenant's memory quota, or end other programs of the tenant"}});
}

}  // namespace gpupool::worker
