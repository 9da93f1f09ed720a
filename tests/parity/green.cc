// Green contexts and their resources.
#include <cuda.h>

#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

void show_resource(const char* what, const CUdevResource& resource) {
  std::printf("%s: type %d, %u multiprocessors, at least %u by %u\n", what, resource.type,
              resource.sm.smCount, resource.sm.minSmPartitionSize, resource.sm.smCoscheduledAlignment);
}

}  // namespace

void green_contexts() {
  CUdevResource all{}, rest{}, part{}, other{};
  CUdevResourceDesc description = nullptr, second_description = nullptr;
  CUgreenCtx green = nullptr, second = nullptr, found = nullptr;
  CUcontext primary = nullptr, context = nullptr, current = nullptr;
  CUstream stream = nullptr, plain = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUdeviceptr out = 0;
  unsigned groups = 0, flags = 0, seen[64] = {};
  unsigned long long id = 0, other_id = 0;
  int active = 0, priority = 9;
  CUdevice device = 9;
  cuCtxGetCurrent(&primary);
  SHOW(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  show_resource("all", all);
  SHOW(cuDeviceGetDevResource(9, &all, CU_DEV_RESOURCE_TYPE_SM));
  SHOW(cuDeviceGetDevResource(0, nullptr, CU_DEV_RESOURCE_TYPE_SM));
  SHOW(cuDeviceGetDevResource(0, &other, CU_DEV_RESOURCE_TYPE_INVALID));
  SHOW(cuDeviceGetDevResource(0, &other, static_cast<CUdevResourceType>(99)));
  SHOW(cuCtxGetDevResource(primary, &other, CU_DEV_RESOURCE_TYPE_SM));
  show_resource("the context's", other);
  SHOW(cuCtxGetDevResource(wild<CUcontext>(), &other, CU_DEV_RESOURCE_TYPE_SM));
  SHOW(cuCtxGetDevResource(nullptr, &other, CU_DEV_RESOURCE_TYPE_SM));
  SHOW_VALUE(cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, 0, 1), "%u", groups);
  SHOW(cuDevSmResourceSplitByCount(nullptr, nullptr, &all, nullptr, 0, 1));
  SHOW(cuDevSmResourceSplitByCount(nullptr, &groups, nullptr, nullptr, 0, 1));
  SHOW(cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, 99, 1));
  SHOW(cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, 0, 100'000));
  CUdevResource forged = all;
  forged._internal_padding[1] ^= 0x55;
  SHOW(cuDevSmResourceSplitByCount(nullptr, &groups, &forged, nullptr, 0, 1));
  forged = all;
  forged.sm.smCount = 3;
  SHOW(cuDevSmResourceSplitByCount(nullptr, &groups, &forged, nullptr, 0, 1));
  forged = {};
  SHOW(cuDevSmResourceSplitByCount(nullptr, &groups, &forged, nullptr, 0, 1));
  groups = 1;
  SHOW(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, 1));
  std::printf("groups %u\n", groups);
  show_resource("part", part);
  show_resource("rest", rest);
  SHOW(cuDevSmResourceSplitByCount(&other, &groups, &part, nullptr, 0, 1));  // already a result of a split
  SHOW(cuDevResourceGenerateDesc(&description, &part, 1));
  SHOW(cuDevResourceGenerateDesc(nullptr, &part, 1));
  SHOW(cuDevResourceGenerateDesc(&second_description, nullptr, 1));
  SHOW(cuDevResourceGenerateDesc(&second_description, &part, 0));
  SHOW(cuDevResourceGenerateDesc(&second_description, &forged, 1));
  CUdevResource mixed[] = {part, all};
  SHOW(cuDevResourceGenerateDesc(&second_description, mixed, 2));
  SHOW(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  SHOW(cuGreenCtxCreate(nullptr, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  SHOW(cuGreenCtxCreate(&second, description, 0, 0));
  SHOW(cuGreenCtxCreate(&second, description, 9, CU_GREEN_CTX_DEFAULT_STREAM));
  SHOW(cuGreenCtxCreate(&second, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  SHOW(cuGreenCtxCreate(&second, wild<CUdevResourceDesc>(), 0, CU_GREEN_CTX_DEFAULT_STREAM));
  SHOW(cuCtxFromGreenCtx(&context, green));
  SHOW(cuCtxFromGreenCtx(nullptr, green));
  SHOW(cuCtxFromGreenCtx(&context, nullptr));
  SHOW(cuCtxFromGreenCtx(&context, wild<CUgreenCtx>()));
  SHOW(cuCtxFromGreenCtx(&context, green));
  SHOW_VALUE(cuGreenCtxGetDevResource(green, &other, CU_DEV_RESOURCE_TYPE_SM), "%u", other.sm.smCount);
  SHOW_VALUE(cuCtxGetDevResource(context, &other, CU_DEV_RESOURCE_TYPE_SM), "%u", other.sm.smCount);
  SHOW(cuGreenCtxGetDevResource(nullptr, &other, CU_DEV_RESOURCE_TYPE_SM));
  SHOW(cuGreenCtxGetDevResource(green, &other, static_cast<CUdevResourceType>(99)));
  SHOW_VALUE(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, -1), "%d", stream != nullptr);
  SHOW(cuGreenCtxStreamCreate(nullptr, green, CU_STREAM_NON_BLOCKING, 0));
  SHOW(cuGreenCtxStreamCreate(&plain, green, 0, 0));
  SHOW(cuGreenCtxStreamCreate(&plain, nullptr, CU_STREAM_NON_BLOCKING, 0));
  SHOW_VALUE(cuStreamGetPriority(stream, &priority), "%d", priority);
  SHOW_VALUE(cuStreamGetFlags(stream, &flags), "%u", flags);
  SHOW_VALUE(cuStreamGetGreenCtx(stream, &found), "%d", found == green);
  SHOW_VALUE(cuStreamGetGreenCtx(nullptr, &found), "%d", found == nullptr);
  SHOW(cuStreamGetGreenCtx(stream, nullptr));
  SHOW(cuStreamGetGreenCtx(wild<CUstream>(), &found));
  SHOW_VALUE(cuStreamGetCtx_v2(stream, &current, &found), "%d %d", current == primary, found == green);
  SHOW_VALUE(cuStreamGetCtx_v2(nullptr, &current, &found), "%d %d", current == primary, found == nullptr);
  SHOW(cuStreamGetCtx_v2(stream, nullptr, &found));
  SHOW(cuStreamGetCtx_v2(wild<CUstream>(), &current, &found));
  SHOW_VALUE(cuStreamGetDevice(stream, &device), "%d", device);
  SHOW(cuGreenCtxGetId(green, &id));
  SHOW_VALUE(cuCtxGetId(context, &other_id), "%d", id == other_id);
  SHOW(cuGreenCtxGetId(green, nullptr));
  SHOW(cuGreenCtxGetId(nullptr, &id));
  SHOW(cuGreenCtxGetId(wild<CUgreenCtx>(), &id));
  // Memory, modules and events belong to the primary context.
  SHOW(cuCtxSetCurrent(context));
  SHOW_VALUE(cuGreenCtxGetId(nullptr, &other_id), "%d", id == other_id);
  SHOW(cuMemAlloc(&out, sizeof seen));
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuModuleGetFunction(&fill, module, "fill"));
  SHOW(cuEventCreate(&event, 0));
  SHOW_VALUE(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING), "%d", plain != nullptr);
  SHOW_VALUE(cuStreamGetGreenCtx(plain, &found), "%d", found == green);
  unsigned value = 11, count = 64;
  void* parameters[] = {&out, &value, &count};
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, plain, parameters, nullptr));
  SHOW(cuCtxSynchronize());
  SHOW(cuCtxSetCurrent(primary));
  value = 12;
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, stream, parameters, nullptr));
  SHOW(cuEventRecord(event, stream));
  SHOW(cuGreenCtxRecordEvent(green, event));
  SHOW(cuGreenCtxWaitEvent(green, event));
  SHOW(cuGreenCtxRecordEvent(green, nullptr));
  SHOW(cuGreenCtxRecordEvent(nullptr, event));
  SHOW(cuGreenCtxWaitEvent(green, nullptr));
  SHOW(cuGreenCtxWaitEvent(wild<CUgreenCtx>(), event));
  SHOW(cuEventSynchronize(event));
  SHOW(cuStreamSynchronize(stream));
  SHOW_VALUE(cuMemcpyDtoH(seen, out, sizeof seen), "%u %u", seen[0], seen[63]);
  SHOW(cuCtxDestroy(context));
  SHOW(cuStreamDestroy(stream));
  SHOW(cuStreamDestroy(plain));
  SHOW(cuGreenCtxCreate(&second, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  SHOW(cuGreenCtxDestroy(second));
  SHOW(cuGreenCtxDestroy(green));
  SHOW(cuGreenCtxDestroy(green));
  SHOW(cuGreenCtxDestroy(nullptr));
  SHOW_UNLESS_GUARDED(cuCtxSetCurrent(context));
  SHOW(cuCtxFromGreenCtx(&context, green));
  // Objects that were created in the green context remain.
  value = 13;
  SHOW(cuCtxSetCurrent(primary));
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW_VALUE(cuMemcpyDtoH(seen, out, sizeof seen), "%u %u", seen[0], seen[63]);
  SHOW(cuMemFree(out));
  SHOW_VALUE(cuDevicePrimaryCtxGetState(0, &flags, &active), "%d", active);
}

}  // namespace parity
