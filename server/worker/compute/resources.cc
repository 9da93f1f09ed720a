#include "server/worker/compute/resources.h"

namespace gpupool::worker {

#if CUDA_VERSION >= 12040

void Resources::load(const SymbolLookup& symbol) {
  const auto find = [&symbol](auto& member, const char* name) {
    member = reinterpret_cast<typename std::remove_reference_t<decltype(member)>::Function>(symbol(name));
  };
  find(of_device_, "cuDeviceGetDevResource");
  find(of_context_, "cuCtxGetDevResource");
  find(split_, "cuDevSmResourceSplitByCount");
  find(describe_, "cuDevResourceGenerateDesc");
}

CUresult Resources::get(CUdevice device, CUcontext context, CUdevResourceType type,
                        CUdevResource* resource) const {
  if (!of_device_ || !of_context_) return CUDA_ERROR_NOT_SUPPORTED;
  return context ? of_context_(context, resource, type) : of_device_(device, resource, type);
}

CUresult Resources::split(const CUdevResource& whole, unsigned* groups, unsigned flags, unsigned least,
                          std::vector<CUdevResource>* parts, CUdevResource* remaining) const {
  if (!split_) return CUDA_ERROR_NOT_SUPPORTED;
  if (parts) parts->resize(*groups);
  const CUresult result = split_(parts ? parts->data() : nullptr, groups, &whole, remaining, flags, least);
  if (parts && (result != CUDA_SUCCESS || *groups < parts->size()))
    parts->resize(result == CUDA_SUCCESS ? *groups : 0);
  return result;
}

CUresult Resources::describe(std::span<CUdevResource> resources, CUdevResourceDesc* description) {
  if (!describe_) return CUDA_ERROR_NOT_SUPPORTED;
  if (descriptions_ >= kMostDescriptions) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = describe_(description, resources.data(), static_cast<unsigned>(resources.size()));
  if (result == CUDA_SUCCESS) ++descriptions_;
  return result;
}

uint64_t Resources::keep(const CUdevResource& resource) {
  kept_.push_back(resource);
  if (kept_.size() > kMostKept) {
    kept_.pop_front();
    ++first_;
  }
  return first_ + kept_.size() - 1;
}

const CUdevResource* Resources::find(uint64_t number) const {
  return number >= first_ && number - first_ < kept_.size() ? &kept_[number - first_] : nullptr;
}

#else

void Resources::load(const SymbolLookup&) {}

#endif

}  // namespace gpupool::worker
