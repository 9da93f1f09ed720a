#include "server/worker/images/images.h"

#include <cstring>

namespace gpupool::worker {
namespace {

bool driver_tells_layouts(const DeviceApi& api) {
#if CUDA_VERSION >= 12040
  return static_cast<bool>(api.cuFuncGetParamInfo);
#else
  return false;
#endif
}

// Returns why the image has no code for the device, or an empty string if it has code.
std::string why_no_code(const DeviceApi& api, CUdevice device, const cuda::Image& image) {
  const auto target = code_target(api, device);
  cuda::CodeSelection selection;
  return target && cuda::select_code(image, *target, selection) == CUDA_ERROR_NO_BINARY_FOR_GPU
             ? cuda::why_nothing_fits(image, *target)
             : "";
}

void collect_layouts(const cuda::Image& image,
                     std::unordered_map<std::string, std::vector<cuda::KernelParam>>& layouts) {
  const auto collect = [&](const std::vector<cuda::ImageEntry>& entries) {
    for (const cuda::ImageEntry& entry : entries) {
      cuda::Bytes code;
      std::vector<cuda::KernelLayout> kernels;
      if (entry.kind == cuda::CodeKind::other || cuda::unpack_entry(entry, code) != CUDA_SUCCESS ||
          cuda::kernels_of_code(entry.kind, code.view(), kernels) != CUDA_SUCCESS) {
        continue;
      }
      for (cuda::KernelLayout& kernel : kernels)
        layouts.try_emplace(std::string(kernel.name), std::move(kernel.params));
    }
  };
  collect(image.entries);
  for (const auto& file : image.linked) collect(file);
}

}  // namespace

std::optional<cuda::CodeTarget> code_target(const DeviceApi& api, CUdevice device) {
  cuda::CodeTarget target;
  const auto get = [&](int* value, CUdevice_attribute attribute) {
    return api.cuDeviceGetAttribute && api.cuDeviceGetAttribute(value, attribute, device) == CUDA_SUCCESS;
  };
  const bool known = get(&target.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) &&
                     get(&target.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return known ? std::optional(target) : std::nullopt;
}

template <class Load>
Images::Loaded Images::load(CUdevice device, std::span<const std::byte> bytes, Options wanted, Kept& kept,
                            const Admit& admit, Load&& load) {
  Loaded loaded;
  cuda::Bundle bundle;
  cuda::Image image;
  loaded.result = bundle.parse(bytes);
  if (loaded.result == CUDA_SUCCESS) loaded.result = cuda::parse_image(bundle.spans(), image);
  if (loaded.result == CUDA_SUCCESS) loaded.result = admit(image);
  loaded.admitted = loaded.result == CUDA_SUCCESS;
  if (loaded.result != CUDA_SUCCESS) return loaded;
  kept.jit = std::make_unique<Jit>();
  auto& [info, error, options, values] = *kept.jit;
  options = {CU_JIT_WALL_TIME, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
             CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  values = {nullptr, info, reinterpret_cast<void*>(sizeof info - 1), error,
            reinterpret_cast<void*>(sizeof error - 1)};
  for (const wire::JitOption& option : wanted) {
    options.push_back(static_cast<CUjit_option>(option.option));
    values.push_back(reinterpret_cast<void*>(static_cast<uintptr_t>(option.value)));
  }
  loaded.result =
      load(bundle.loadable(), static_cast<unsigned>(options.size()), options.data(), values.data());
  std::memcpy(&loaded.milliseconds, &values[0], sizeof loaded.milliseconds);
  loaded.log.assign(error, ::strnlen(error, sizeof error));
  loaded.info.assign(info, ::strnlen(info, sizeof info));
  // A library may load without code for the device; calls that need the code fail later.
  if (loaded.log.empty() && loaded.info.empty() &&
      (loaded.result == CUDA_SUCCESS || loaded.result == CUDA_ERROR_NO_BINARY_FOR_GPU)) {
    loaded.log = why_no_code(api_, device, image);
  }
  if (loaded.result == CUDA_SUCCESS && !driver_tells_layouts(api_)) collect_layouts(image, kept.layouts);
  return loaded;
}

Images::Loaded Images::load_module(uint64_t handle, CUdevice device, std::span<const std::byte> bundle,
                                   Options options, const Admit& admit) {
  Kept kept;
  CUmodule module = nullptr;
  Loaded loaded = load(device, bundle, options, kept, admit,
                       [&](const void* image, unsigned count, CUjit_option* names, void** values) {
                         return api_.cuModuleLoadDataEx(&module, image, count, names, values);
                       });
  loaded.object = module;
  kept.jit.reset();
  if (loaded.result == CUDA_SUCCESS && !kept.layouts.empty()) kept_[handle] = std::move(kept);
  return loaded;
}

Images::Loaded Images::load_library(uint64_t handle, CUdevice device, std::span<const std::byte> bundle,
                                    Options options, const Admit& admit) {
#if CUDA_VERSION >= 12000
  if (!api_.cuLibraryLoadData) return {.result = CUDA_ERROR_NOT_SUPPORTED};
  Kept kept;
  CUlibrary library = nullptr;
  Loaded loaded =
      load(device, bundle, options, kept, admit,
           [&](const void* image, unsigned count, CUjit_option* names, void** values) {
             return api_.cuLibraryLoadData(&library, image, names, values, count, nullptr, nullptr, 0);
           });
  loaded.object = library;
  if (loaded.result == CUDA_SUCCESS) kept_[handle] = std::move(kept);
  return loaded;
#else
  return {.result = CUDA_ERROR_NOT_SUPPORTED};
#endif
}

const std::vector<cuda::KernelParam>* Images::layout(uint64_t owner, std::string_view kernel) const {
  const auto kept = kept_.find(owner);
  if (kept == kept_.end()) return nullptr;
  const auto found = kept->second.layouts.find(std::string(kernel));
  return found == kept->second.layouts.end() ? nullptr : &found->second;
}

}  // namespace gpupool::worker
