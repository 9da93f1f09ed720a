// The fake driver's modules, and launches of their kernels.
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "protocol/images/fatbin.h"
#include "tests/server/worker/fake_driver.h"

namespace gpupool::worker::test {
namespace {

using Lock = std::unique_lock<std::mutex>;

CUresult load_module(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                     void** values) {
  if (driver().in_module_load) driver().in_module_load();
  const Lock lock(driver().mutex);
  driver().images.emplace_back(static_cast<const char*>(image));
  if (cuda::is_fat_binary(image))
    return CUDA_ERROR_NO_BINARY_FOR_GPU;  // for other devices; NVIDIA's driver leaves the log empty
  const bool broken = driver().images.back().find("broken") != std::string::npos;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_INFO_LOG_BUFFER) std::strcpy(static_cast<char*>(values[i]), "compiled");
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER && broken) std::strcpy(static_cast<char*>(values[i]), "error");
  }
  if (broken) return CUDA_ERROR_INVALID_PTX;
  *module = reinterpret_cast<CUmodule>(0xd0000 + 16 * driver().next_handle++);
  driver().modules.insert(*module);
  return CUDA_SUCCESS;
}
CUresult unload_module(CUmodule module) {
  const Lock lock(driver().mutex);
  return driver().modules.erase(module) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult get_function(CUfunction* function, CUmodule module, const char* name) {
  const Lock lock(driver().mutex);
  if (!driver().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (std::string_view(name) == "missing") return CUDA_ERROR_NOT_FOUND;
  auto& interned = driver().functions[name];
  interned = name;
  *function = reinterpret_cast<CUfunction>(&interned);
  return CUDA_SUCCESS;
}
CUresult get_global(CUdeviceptr* address, size_t* size, CUmodule, const char*) {
  *address = reinterpret_cast<CUdeviceptr>(driver().global.data());
  *size = driver().global.size();
  return CUDA_SUCCESS;
}
CUresult function_attribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  *value = 100 + attribute;
  const Lock lock(driver().mutex);
  ++driver().attribute_questions;
  if (const CUresult refusal = std::exchange(driver().next_attribute, CUDA_SUCCESS); refusal != CUDA_SUCCESS)
    return refusal;
  const auto local = driver().local_bytes.find(*reinterpret_cast<std::string*>(function));
  if (attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES && local != driver().local_bytes.end())
    *value = local->second;
  return attribute == 5 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
#if CUDA_VERSION >= 12040
CUresult parameter_info(CUfunction, size_t index, size_t* offset, size_t* size) {
  if (index >= 2) return CUDA_ERROR_INVALID_VALUE;
  *offset = 8 * index;
  *size = index == 0 ? 8 : 4;
  return CUDA_SUCCESS;
}
#endif
#if CUDA_VERSION >= 12040
// Counts the functions whose local memory a test has set, for every module.
CUresult function_count(unsigned* count, CUmodule) {
  const Lock lock(driver().mutex);
  *count = static_cast<unsigned>(driver().local_bytes.size());
  return CUDA_SUCCESS;
}
CUresult enumerate_functions(CUfunction* functions, unsigned count, CUmodule) {
  const Lock lock(driver().mutex);
  for (const auto& [name, bytes] : driver().local_bytes) {
    auto& interned = driver().functions[name];
    interned = name;
    if (count == 0) break;
    --count;
    *functions++ = reinterpret_cast<CUfunction>(&interned);
  }
  return CUDA_SUCCESS;
}
#endif
CUresult note_launch(CUfunction function, CUstream stream, FakeLaunch launch, void** extra) {
  const CUresult refusal =
      driver().locked([] { return std::exchange(driver().next_kernel_launch, CUDA_SUCCESS); });
  if (refusal != CUDA_SUCCESS) return refusal;
  launch.function = *reinterpret_cast<std::string*>(function);
  if (extra) {
    const auto* const bytes = static_cast<const std::byte*>(extra[1]);
    launch.parameters.assign(bytes, bytes + *static_cast<size_t*>(extra[3]));
  }
  return enqueue(stream, [launch] {
    driver().launches.push_back(launch);
    if (driver().in_kernel) driver().in_kernel();
    return true;
  });
}
CUresult launch_kernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned, unsigned, unsigned,
                       unsigned, CUstream stream, void**, void** extra) {
  return note_launch(function, stream, {.grid = {x, y, z}}, extra);
}
CUresult launch_extended(const CUlaunchConfig* config, CUfunction function, void**, void** extra) {
  return note_launch(function, config->hStream,
                     {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                      .extended = true,
                      .attributes = config->numAttrs},
                     extra);
}

const std::unordered_map<std::string_view, void*> kModuleSymbols = {
    FAKE(cuModuleLoadDataEx, load_module),
    FAKE(cuModuleUnload, unload_module),
    FAKE(cuModuleGetFunction, get_function),
    FAKE(cuModuleGetGlobal_v2, get_global),
    FAKE(cuFuncGetAttribute, function_attribute),
#if CUDA_VERSION >= 12040
    FAKE(cuFuncGetParamInfo, parameter_info),
    FAKE(cuModuleGetFunctionCount, function_count),
    FAKE(cuModuleEnumerateFunctions, enumerate_functions),
#endif
    FAKE(cuLaunchKernel, launch_kernel),
    FAKE(cuLaunchKernelEx, launch_extended),
};

}  // namespace

void* fake_module_symbol(std::string_view name) {
  const auto found = kModuleSymbols.find(name);
  return found == kModuleSymbols.end() ? nullptr : found->second;
}

}  // namespace gpupool::worker::test
