// Streams, events, destroyed objects, and sticky errors.
#include "tests/parity/show.h"

namespace parity {

void streams() {
  CUstream stream = nullptr, urgent = nullptr;
  CUevent event = nullptr;
  CUcontext context = nullptr, current = nullptr;
  CUdeviceptr words = 0;
  unsigned flags = 99;
  int priority = 99;
  unsigned long long id = 0;
  CUstreamCaptureStatus capture{};
  cuCtxGetCurrent(&current);
  cuMemAlloc(&words, 64);
  cuMemsetD8(words, 0, 64);
  SHOW(cuStreamCreate(nullptr, 0));
  SHOW(cuStreamCreate(&stream, 99));
  SHOW(cuStreamCreateWithPriority(nullptr, 0, 0));
  SHOW(cuStreamCreateWithPriority(&stream, 99, 0));
  SHOW(cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, -1000));
  SHOW_VALUE(cuStreamGetPriority(urgent, &priority), "%d", priority);
  SHOW(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  SHOW_VALUE(cuStreamGetFlags(stream, &flags), "%u", flags);
  SHOW_VALUE(cuStreamGetFlags(urgent, &flags), "%u", flags);
  SHOW_VALUE(cuStreamGetFlags(nullptr, &flags), "%u", flags);
  SHOW(cuStreamGetFlags(stream, nullptr));
  SHOW(cuStreamGetFlags(wild<CUstream>(), &flags));
  SHOW_VALUE(cuStreamGetPriority(stream, &priority), "%d", priority);
  SHOW_VALUE(cuStreamGetPriority(nullptr, &priority), "%d", priority);
  SHOW(cuStreamGetPriority(stream, nullptr));
  SHOW(cuStreamGetPriority(wild<CUstream>(), &priority));
  SHOW_VALUE(cuStreamGetCtx(stream, &context), "%d", context == current);
  SHOW_VALUE(cuStreamGetCtx(nullptr, &context), "%d", context == current);
  SHOW(cuStreamGetCtx(stream, nullptr));
  SHOW(cuStreamGetCtx(wild<CUstream>(), &context));
  SHOW(cuStreamGetId(stream, nullptr));
  SHOW(cuStreamGetId(wild<CUstream>(), &id));
  SHOW_VALUE(cuStreamIsCapturing(stream, &capture), "%d", capture);
  SHOW(cuStreamIsCapturing(stream, nullptr));
  SHOW(cuStreamIsCapturing(wild<CUstream>(), &capture));
  SHOW(cuStreamQuery(stream));
  SHOW(cuStreamQuery(nullptr));
  SHOW(cuStreamQuery(CU_STREAM_LEGACY));
  SHOW(cuStreamQuery(CU_STREAM_PER_THREAD));
  SHOW(cuStreamQuery(wild<CUstream>()));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  SHOW(cuStreamSynchronize(wild<CUstream>()));
  SHOW(cuStreamSynchronize(reinterpret_cast<CUstream>(words)));
  SHOW(cuStreamSynchronize(reinterpret_cast<CUstream>(current)));
  SHOW(cuStreamWaitEvent(stream, nullptr, 0));
  SHOW(cuStreamWaitEvent(stream, wild<CUevent>(), 0));
  SHOW(cuStreamWaitEvent(stream, reinterpret_cast<CUevent>(stream), 0));
  cuEventCreate(&event, 0);
  SHOW(cuStreamWaitEvent(stream, event, 0));
  LATE(cuStreamWaitEvent(stream, event, 77));
  SHOW(cuStreamWaitEvent(wild<CUstream>(), event, 0));
  SHOW(cuLaunchHostFunc(stream, nullptr, nullptr));
  SHOW(cuLaunchHostFunc(
      wild<CUstream>(), [](void*) {}, nullptr));
  SHOW(cuLaunchHostFunc(
      stream, [](void*) {}, nullptr));
  SHOW(cuStreamAddCallback(stream, nullptr, nullptr, 0));
  SHOW(cuStreamAddCallback(
      stream, [](CUstream, CUresult, void*) {}, nullptr, 9));
  SHOW(cuStreamAddCallback(
      wild<CUstream>(), [](CUstream, CUresult, void*) {}, nullptr, 0));
  SHOW(cuStreamWaitValue32(stream, words, 0, CU_STREAM_WAIT_VALUE_EQ));
  LATE(cuStreamWaitValue32(stream, words, 0, 99));
  LATE(cuStreamWaitValue32(stream, words + 1, 0, CU_STREAM_WAIT_VALUE_EQ));
  LATE(cuStreamWaitValue32(stream, kWildAddress, 0, CU_STREAM_WAIT_VALUE_EQ));
  LATE(cuStreamWaitValue32(stream, 0, 0, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWriteValue32(stream, words, 1, 0));
  LATE(cuStreamWriteValue32(stream, words, 1, 99));
  LATE(cuStreamWriteValue32(stream, kWildAddress, 1, 0));
  LATE(cuStreamWriteValue64(stream, words + 4, 1, 0));
  SHOW(cuStreamWriteValue64(stream, words + 8, 1, 0));
  SHOW(cuStreamWaitValue64(stream, words + 8, 1, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWriteValue32(wild<CUstream>(), words, 1, 0));
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = words;
  operations[0].writeValue.value = 9;
  operations[1].operation = static_cast<CUstreamBatchMemOpType>(99);
  SHOW(cuStreamBatchMemOp(stream, 1, operations, 0));
  LATE(cuStreamBatchMemOp(stream, 2, operations, 0));
  LATE(cuStreamBatchMemOp(stream, 0, operations, 0));
  LATE(cuStreamBatchMemOp(stream, 1, nullptr, 0));
  LATE(cuStreamBatchMemOp(stream, 100'000, operations, 0));
  LATE(cuStreamBatchMemOp(stream, 1, operations, 99));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  SHOW_VALUE(cuThreadExchangeStreamCaptureMode(&mode), "%d", mode);
  SHOW(cuThreadExchangeStreamCaptureMode(nullptr));
  mode = static_cast<CUstreamCaptureMode>(9);
  SHOW(cuThreadExchangeStreamCaptureMode(&mode));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuStreamDestroy(nullptr));
  SHOW(cuStreamDestroy(CU_STREAM_LEGACY));
  SHOW(cuStreamDestroy(CU_STREAM_PER_THREAD));
  SHOW(cuStreamDestroy(wild<CUstream>()));
  SHOW(cuStreamDestroy(stream));
  SHOW(cuStreamDestroy(stream));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuEventRecord(event, stream));
}

void events() {
  CUevent a = nullptr, b = nullptr, plain = nullptr;
  CUstream stream = nullptr;
  float milliseconds = -1;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  SHOW(cuEventCreate(nullptr, 0));
  LATE(cuEventCreate(&a, 0xff00));
  SHOW(cuEventCreate(&a, CU_EVENT_INTERPROCESS));
  SHOW(cuEventCreate(&a, 0));
  SHOW(cuEventCreate(&b, CU_EVENT_BLOCKING_SYNC));
  SHOW(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  SHOW(cuEventQuery(a));
  SHOW(cuEventSynchronize(a));
  SHOW(cuEventQuery(nullptr));
  SHOW(cuEventQuery(wild<CUevent>()));
  SHOW(cuEventSynchronize(nullptr));
  SHOW(cuEventSynchronize(wild<CUevent>()));
  SHOW(cuEventElapsedTime(&milliseconds, a, b));
  SHOW(cuEventRecord(a, nullptr));
  SHOW(cuEventElapsedTime(&milliseconds, a, b));
  SHOW(cuEventRecord(b, stream));
  SHOW(cuEventRecord(plain, stream));
  SHOW(cuEventRecord(nullptr, stream));
  SHOW(cuEventRecord(wild<CUevent>(), stream));
  SHOW(cuEventRecord(a, wild<CUstream>()));
  LATE(cuEventRecordWithFlags(a, nullptr, 77));
  SHOW(cuEventRecordWithFlags(a, nullptr, 0));
  SHOW(cuEventSynchronize(a));
  SHOW(cuEventSynchronize(b));
  SHOW_VALUE(cuEventElapsedTime(&milliseconds, a, b), "%d", milliseconds > -1000 && milliseconds < 10'000);
  SHOW(cuEventElapsedTime(nullptr, a, b));
  SHOW(cuEventElapsedTime(&milliseconds, a, plain));
  SHOW(cuEventElapsedTime(&milliseconds, nullptr, b));
  SHOW(cuEventElapsedTime(&milliseconds, a, wild<CUevent>()));
  SHOW(cuEventDestroy(nullptr));
  SHOW(cuEventDestroy(wild<CUevent>()));
  SHOW(cuEventDestroy(reinterpret_cast<CUevent>(stream)));
  SHOW(cuEventDestroy(a));
  SHOW(cuEventDestroy(a));
  SHOW(cuEventRecord(a, nullptr));
  SHOW(cuEventQuery(a));
  SHOW(cuEventElapsedTime(&milliseconds, a, b));
}

// Objects of a destroyed context.
void destroyed_things() {
  CUcontext context = nullptr, rest = nullptr;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&rest, 0);
  cuCtxSetCurrent(rest);
#if CUDA_VERSION >= 13000
  cuCtxCreate(&context, nullptr, 0, 0);
#else
  cuCtxCreate(&context, 0, 0);
#endif
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr address = 0;
  float milliseconds = 0;
  cuStreamCreate(&stream, 0);
  cuEventCreate(&event, 0);
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&function, module, "nothing");
  cuMemAlloc(&address, 4 << 20);
  SHOW(cuCtxDestroy(context));
  SHOW(cuCtxSynchronize());
  SHOW_UNLESS_GUARDED(cuCtxPushCurrent(context));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuStreamQuery(stream));
  LATE(cuStreamDestroy(stream));
  SHOW(cuEventQuery(event));
  LATE(cuEventRecord(event, nullptr));
  SHOW(cuEventElapsedTime(&milliseconds, event, event));
  LATE(cuEventDestroy(event));
  SHOW(cuModuleGetFunction(&function, module, "fill"));
  LATE(launch(function, 1, 1, 0, nullptr, nullptr));
  LATE(cuModuleUnload(module));
  SHOW(cuMemsetD8(address, 1, 10));
  SHOW(cuMemcpyDtoH(&milliseconds, address, 4));
  SHOW(cuMemFree(address));
  SHOW(cuCtxSynchronize());
}

// Calls that free or destroy objects need no current context.
void without_a_context() {
  CUcontext before = nullptr;
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  void* host = nullptr;
  cuMemAlloc(&address, 4096);
  cuStreamCreate(&stream, 0);
  cuEventCreate(&event, 0);
  cuModuleLoadData(&module, kernels_ptx);
  cuMemAllocHost(&host, 4096);
  cuCtxPopCurrent(&before);
  SHOW(cuMemFree(address));
  SHOW(cuMemFree(0));
  SHOW(cuStreamDestroy(stream));
  SHOW(cuStreamDestroy(stream));
  SHOW(cuEventDestroy(event));
  SHOW(cuModuleUnload(module));
  SHOW(cuMemFreeHost(host));
  SHOW(cuCtxGetCurrent(&before) == CUDA_SUCCESS && before == nullptr ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
}

void sticky_errors() {
  CUmodule module = nullptr;
  CUfunction store = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr address = 0;
  size_t free = 0, total = 0;
  int number = 0;
  void* host = nullptr;
  CUcontext context = nullptr;
  cuModuleLoadData(&module, kernels_ptx);
  cuModuleGetFunction(&store, module, "store_at");
  cuStreamCreate(&stream, 0);
  cuEventCreate(&event, 0);
  cuMemAlloc(&address, 4096);
  CUdeviceptr nowhere = 8;
  void* parameters[] = {&nowhere};
  SHOW(launch(store, 1, 1, 0, stream, parameters));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuCtxSynchronize());
  SHOW(cuStreamQuery(stream));
  SHOW(cuStreamSynchronize(nullptr));
  SHOW(cuEventRecord(event, stream));
  SHOW(cuEventQuery(event));
  SHOW(cuEventSynchronize(event));
  SHOW(launch(store, 1, 1, 0, stream, parameters));
  SHOW(cuMemAlloc(&address, 64));
  SHOW(cuMemcpyHtoD(address, &number, 4));
  SHOW(cuMemcpyDtoH(&number, address, 4));
  SHOW(cuMemsetD8(address, 0, 4));
  SHOW(cuMemGetInfo(&free, &total));
  SHOW(cuStreamCreate(&stream, 0));
  SHOW(cuEventCreate(&event, 0));
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuMemAllocHost(&host, 64));
  SHOW(cuDeviceGetCount(&number));
  SHOW(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  SHOW(cuCtxGetCurrent(&context));
  SHOW(cuCtxSetCurrent(context));
  SHOW(cuDevicePrimaryCtxRetain(&context, 0));
  SHOW(cuDevicePrimaryCtxReset(0));
  SHOW(cuCtxSynchronize());
  SHOW(cuDevicePrimaryCtxRetain(&context, 0));
  SHOW(cuCtxSynchronize());
  SHOW(cuMemAlloc(&address, 64));
  SHOW(cuMemFree(address));
}

}  // namespace parity
