#include "server/worker/compute/device_partition.h"

namespace gpupool::worker {

#if CUDA_VERSION >= 12040

void DevicePartition::load(const SymbolLookup& symbol) {
  const auto find = [&symbol](auto& member, const char* name) {
    member = reinterpret_cast<typename std::remove_reference_t<decltype(member)>::Function>(symbol(name));
  };
  find(get_resource_, "cuDeviceGetDevResource");
  find(split_, "cuDevSmResourceSplitByCount");
  find(describe_, "cuDevResourceGenerateDesc");
  find(create_, "cuGreenCtxCreate");
  find(destroy_, "cuGreenCtxDestroy");
  find(context_of_, "cuCtxFromGreenCtx");
}

bool DevicePartition::split(CUdevice device, std::vector<CUdevResource>& groups, CUdevResource& all,
                            CUdevResource& rest) const {
  if (!get_resource_ || !split_ || !describe_ || !create_ || !destroy_ || !context_of_) return false;
  if (get_resource_(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS || all.sm.smCount == 0)
    return false;
  // The driver rounds the group size up, so there may be fewer groups than requested.
  const unsigned least = (all.sm.smCount + quota::kMostGroups - 1) / quota::kMostGroups;
  unsigned count = 0;
  if (split_(nullptr, &count, &all, nullptr, 0, least) != CUDA_SUCCESS || count == 0 ||
      count > quota::kMostGroups)
    return false;
  groups.resize(count);
  if (split_(groups.data(), &count, &all, &rest, 0, least) != CUDA_SUCCESS || count != groups.size())
    return false;
  const unsigned each = groups.front().sm.smCount;
  for (const CUdevResource& group : groups) {
    if (group.sm.smCount != each || each == 0) return false;
  }
  return uint64_t{each} * count <= all.sm.smCount;
}

quota::Partitions::Gpu DevicePartition::divide(CUdevice device) const {
  std::vector<CUdevResource> groups;
  CUdevResource all{}, rest{};
  if (!split(device, groups, all, rest)) return {};
  return {static_cast<uint32_t>(groups.size()), groups.front().sm.smCount, all.sm.smCount};
}

CUresult DevicePartition::create(CUdevice device, quota::Groups which, GreenContext* green,
                                 CUcontext* context) const {
  std::vector<CUdevResource> groups, chosen;
  CUdevResource all{}, rest{};
  if (!split(device, groups, all, rest)) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < groups.size(); ++i) {
    if ((which >> i & 1) != 0) chosen.push_back(groups[i]);
  }
  if (rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount != 0 && (which >> (groups.size() - 1) & 1) != 0)
    chosen.push_back(rest);
  if (chosen.empty()) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  CUdevResourceDesc description = nullptr;
  const CUresult result = describe_(&description, chosen.data(), static_cast<unsigned>(chosen.size()));
  return result == CUDA_SUCCESS ? create(device, description, green, context) : result;
}

CUresult DevicePartition::create(CUdevice device, CUdevResourceDesc description, GreenContext* green,
                                 CUcontext* context) const {
  if (!create_ || !destroy_ || !context_of_) return CUDA_ERROR_NOT_SUPPORTED;
  CUgreenCtx made = nullptr;
  CUresult result = create_(&made, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return result;
  result = context_of_(context, made);
  if (result != CUDA_SUCCESS)
    destroy_(made);
  else
    *green = made;
  return result;
}

void DevicePartition::destroy(GreenContext green) const {
  if (green) destroy_(static_cast<CUgreenCtx>(green));
}

#else

void DevicePartition::load(const SymbolLookup&) {}
quota::Partitions::Gpu DevicePartition::divide(CUdevice) const {
  return {};
}
CUresult DevicePartition::create(CUdevice, quota::Groups, GreenContext*, CUcontext*) const {
  return CUDA_ERROR_NOT_SUPPORTED;
}
void DevicePartition::destroy(GreenContext) const {}

#endif

}  // namespace gpupool::worker
