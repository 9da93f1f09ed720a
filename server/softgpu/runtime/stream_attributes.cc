#include <algorithm>

#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/stream.h"

namespace gpupool::softgpu {
namespace {

// CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP and CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, which older headers lack.
constexpr int kDomainMap = 9;
constexpr int kDomain = 10;

bool valid(const CUaccessPolicyWindow& window) {
  const auto known = [](CUaccessProperty property) {
    return property == CU_ACCESS_PROPERTY_NORMAL || property == CU_ACCESS_PROPERTY_STREAMING ||
           property == CU_ACCESS_PROPERTY_PERSISTING;
  };
  return window.num_bytes == 0 /* the largest window of this device */ && window.hitRatio >= 0 &&
         window.hitRatio <= 1 && known(window.hitProp) && known(window.missProp) &&
         window.missProp != CU_ACCESS_PROPERTY_PERSISTING;
}

// Copies the fields but not the padding behind them, which may have bytes of earlier objects.
void copy_fields(const CUaccessPolicyWindow& from, CUaccessPolicyWindow* to) {
  to->base_ptr = from.base_ptr;
  to->num_bytes = from.num_bytes;
  to->hitRatio = from.hitRatio;
  to->hitProp = from.hitProp;
  to->missProp = from.missProp;
}

}  // namespace

CUresult Stream::attribute(CUstreamAttrID attribute, CUstreamAttrValue* value) const {
  std::lock_guard guard(attributes_mutex_);
  CUstreamAttrValue found{};
  switch (static_cast<int>(attribute)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      copy_fields(attributes_.window, &found.accessPolicyWindow);
      break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: found.syncPolicy = attributes_.synchronization; break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: found.priority = priority(); break;
#if CUDA_VERSION >= 12000
    case kDomainMap: found.memSyncDomainMap = {attributes_.default_domain, attributes_.remote_domain}; break;
    case kDomain: found.memSyncDomain = static_cast<CUlaunchMemSyncDomain>(attributes_.domain); break;
#endif
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  *value = found;
  return CUDA_SUCCESS;
}

CUresult Stream::set_attribute(CUstreamAttrID attribute, const CUstreamAttrValue& value) {
  std::lock_guard guard(attributes_mutex_);
  switch (static_cast<int>(attribute)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      if (!valid(value.accessPolicyWindow)) return CUDA_ERROR_INVALID_VALUE;
      attributes_.window = value.accessPolicyWindow;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      if (value.syncPolicy < CU_SYNC_POLICY_AUTO || value.syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
      attributes_.synchronization = value.syncPolicy;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      priority_ = std::clamp(value.priority, limits::kGreatestPriority, limits::kLeastPriority);
      return CUDA_SUCCESS;
#if CUDA_VERSION >= 12000
    case kDomainMap:  // one domain: CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT
      if (value.memSyncDomainMap.default_ != 0 || value.memSyncDomainMap.remote != 0)
        return CUDA_ERROR_INVALID_VALUE;
      return CUDA_SUCCESS;
    case kDomain:
      if (value.memSyncDomain != CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT &&
          value.memSyncDomain != CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      attributes_.domain = value.memSyncDomain;
      return CUDA_SUCCESS;
#endif
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

void Stream::copy_attributes(const Stream& source) {
  if (&source == this) return;
  std::scoped_lock guard(attributes_mutex_, source.attributes_mutex_);
  attributes_ = source.attributes_;
  priority_ = source.priority();
}

}  // namespace gpupool::softgpu
