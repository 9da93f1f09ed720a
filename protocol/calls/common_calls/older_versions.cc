// Defines the older versions of functions (CUDA_OLDER of calls.def) as exported symbols.
#include "protocol/calls/older_version.h"
#include "protocol/driver/export_function.h"

using gpupool::cuda::OlderVersion;

#define CUDA_OLDER(name, newer, ...) \
  GPUPOOL_EXPORT_FUNCTION(           \
      name, OlderVersion<decltype(&::name), &::newer, nullptr __VA_OPT__(, ) __VA_ARGS__>::call)
#define CUDA_OLDER_ON_STREAM(name, newer, ...)       \
  CUDA_OLDER(name, newer __VA_OPT__(, ) __VA_ARGS__) \
  GPUPOOL_EXPORT_FUNCTION(                           \
      name##_ptsz,                                   \
      OlderVersion<decltype(&::name), &::newer, nullptr __VA_OPT__(, ) __VA_ARGS__>::call_per_thread)
#define CUDA_OLDER_ALLOCATION(name, newer, free) \
  GPUPOOL_EXPORT_FUNCTION(name, OlderVersion<decltype(&::name), &::newer, &::free>::call)

#define CUDA_CALL(...)
#define CUDA_CALL_CUSTOM_EXPORT(...)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
