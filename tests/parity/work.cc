// Streams, events, modules, libraries and launches.
#include <string>

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
  SHOW(cuStreamWaitEvent(stream, event, 77));
  SHOW(cuStreamWaitEvent(wild<CUstream>(), event, 0));
  SHOW(cuLaunchHostFunc(stream, nullptr, nullptr));
  SHOW(cuLaunchHostFunc(wild<CUstream>(), [](void*) {}, nullptr));
  SHOW(cuLaunchHostFunc(stream, [](void*) {}, nullptr));
  SHOW(cuStreamAddCallback(stream, nullptr, nullptr, 0));
  SHOW(cuStreamAddCallback(stream, [](CUstream, CUresult, void*) {}, nullptr, 9));
  SHOW(cuStreamAddCallback(wild<CUstream>(), [](CUstream, CUresult, void*) {}, nullptr, 0));
  SHOW(cuStreamWaitValue32(stream, words, 0, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWaitValue32(stream, words, 0, 99));
  SHOW(cuStreamWaitValue32(stream, words + 1, 0, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWaitValue32(stream, kWildAddress, 0, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWaitValue32(stream, 0, 0, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWriteValue32(stream, words, 1, 0));
  SHOW(cuStreamWriteValue32(stream, words, 1, 99));
  SHOW(cuStreamWriteValue32(stream, kWildAddress, 1, 0));
  SHOW(cuStreamWriteValue64(stream, words + 4, 1, 0));
  SHOW(cuStreamWriteValue64(stream, words + 8, 1, 0));
  SHOW(cuStreamWaitValue64(stream, words + 8, 1, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWriteValue32(wild<CUstream>(), words, 1, 0));
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = words;
  operations[0].writeValue.value = 9;
  operations[1].operation = static_cast<CUstreamBatchMemOpType>(99);
  SHOW(cuStreamBatchMemOp(stream, 1, operations, 0));
  SHOW(cuStreamBatchMemOp(stream, 2, operations, 0));
  SHOW(cuStreamBatchMemOp(stream, 0, operations, 0));
  SHOW(cuStreamBatchMemOp(stream, 1, nullptr, 0));
  SHOW(cuStreamBatchMemOp(stream, 100'000, operations, 0));
  SHOW(cuStreamBatchMemOp(stream, 1, operations, 99));
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
  SHOW(cuEventCreate(&a, 0xff00));
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
  SHOW(cuEventRecordWithFlags(a, nullptr, 77));
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

namespace {

CUresult launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared, CUstream stream, void** parameters,
                void** extra = nullptr) {
  return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, extra);
}

void launches(CUfunction fill, CUfunction nothing) {
  CUdeviceptr out = 0;
  unsigned value = 1, count = 100;
  cuMemAlloc(&out, 4096);
  void* parameters[] = {&out, &value, &count};
  SHOW(launch(fill, 1, 128, 0, nullptr, parameters));
  SHOW(launch(nullptr, 1, 1, 0, nullptr, parameters));
  SHOW(launch(wild<CUfunction>(), 1, 1, 0, nullptr, parameters));
  SHOW(launch(reinterpret_cast<CUfunction>(out), 1, 1, 0, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 0, wild<CUstream>(), parameters));
  SHOW(launch(fill, 0, 1, 0, nullptr, parameters));
  SHOW(launch(fill, 1, 0, 0, nullptr, parameters));
  SHOW(launch(fill, 1, 1025, 0, nullptr, parameters));
  SHOW(launch(fill, 0xffffffff, 1, 0, nullptr, parameters));
  SHOW(cuLaunchKernel(fill, 1, 70000, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 1, 70000, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 0, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 65, 0, nullptr, parameters, nullptr));
  SHOW(cuLaunchKernel(fill, 1, 1, 1, 64, 64, 1, 0, nullptr, parameters, nullptr));
  SHOW(launch(fill, 1, 1, 48 * 1024, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 48 * 1024 + 1, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 0xffffffff, nullptr, parameters));
  SHOW(launch(fill, 1, 1, 0, nullptr, nullptr));
  SHOW(launch(nothing, 1, 1, 0, nullptr, nullptr));
  struct {
    CUdeviceptr out;
    unsigned value, count;
  } packed{out, 5, 10};
  size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  SHOW(launch(fill, 1, 128, 0, nullptr, nullptr, extra));
  SHOW(launch(fill, 1, 128, 0, nullptr, parameters, extra));
  size = 4;
  SHOW(launch(fill, 1, 128, 0, nullptr, nullptr, extra));
  void* unknown[] = {wild<void*>(77), &packed, CU_LAUNCH_PARAM_END};
  SHOW(launch(fill, 1, 128, 0, nullptr, nullptr, unknown));
  SHOW(cuLaunchCooperativeKernel(fill, 1, 1, 1, 128, 1, 1, 0, nullptr, parameters));
  SHOW(cuLaunchCooperativeKernel(fill, 1000000, 1, 1, 128, 1, 1, 0, nullptr, parameters));
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  SHOW(cuLaunchKernelEx(nullptr, fill, parameters, nullptr));
  config.numAttrs = 1;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  CUlaunchAttribute attribute{};
  config.attrs = &attribute;
  attribute.id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  attribute.id = static_cast<CUlaunchAttributeID>(999);
  SHOW(cuLaunchKernelEx(&config, fill, parameters, nullptr));
  SHOW(cuCtxSynchronize());
  cuMemFree(out);
}

}  // namespace

void modules() {
  CUmodule module = nullptr, second = nullptr;
  CUfunction fill = nullptr, nothing = nullptr, function = nullptr;
  CUdeviceptr address = 0;
  size_t size = 0, offset = 0;
  int number = 0, other = 0;
  const char* name = nullptr;
  SHOW(cuModuleLoadData(nullptr, kernels_ptx));
  SHOW(cuModuleLoadData(&module, nullptr));
  SHOW(cuModuleLoadData(&module, "garbage"));
  SHOW(cuModuleLoadData(&module, ""));
  // The driver takes an image's size from its headers, so that those must be there.
  char elf[4096] = "\x7f" "ELF and nothing more";
  SHOW(cuModuleLoadData(&module, elf));
  SHOW(cuModuleLoad(&module, "/no/such/file"));
  SHOW(cuModuleLoad(&module, nullptr));
  SHOW(cuModuleLoad(nullptr, "/no/such/file"));
  SHOW(cuModuleLoadFatBinary(&module, nullptr));
  SHOW(cuModuleLoadDataEx(&module, kernels_ptx, 1, nullptr, nullptr));
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuModuleLoadDataEx(&second, kernels_ptx, 0, nullptr, nullptr));
  SHOW(cuModuleGetFunction(nullptr, module, "fill"));
  SHOW(cuModuleGetFunction(&fill, nullptr, "fill"));
  SHOW(cuModuleGetFunction(&fill, wild<CUmodule>(), "fill"));
  SHOW(cuModuleGetFunction(&fill, module, nullptr));
  SHOW(cuModuleGetFunction(&fill, module, ""));
  SHOW(cuModuleGetFunction(&fill, module, "absent"));
  SHOW(cuModuleGetFunction(&fill, module, "counter"));
  SHOW(cuModuleGetFunction(&fill, module, std::string(10'000, 'x').c_str()));
  SHOW(cuModuleGetFunction(&fill, module, "fill"));
  SHOW(cuModuleGetFunction(&nothing, module, "nothing"));
  SHOW_VALUE(cuModuleGetFunction(&function, module, "fill"), "%d", function == fill);
  SHOW_VALUE(cuModuleGetFunction(&function, second, "fill"), "%d", function == fill);
  SHOW_VALUE(cuModuleGetGlobal(&address, &size, module, "counter"), "%zu", size);
  SHOW_VALUE(cuModuleGetGlobal(nullptr, &size, module, "table"), "%zu", size);
  SHOW(cuModuleGetGlobal(&address, nullptr, module, "table"));
  SHOW(cuModuleGetGlobal(nullptr, nullptr, module, "table"));
  SHOW(cuModuleGetGlobal(&address, &size, module, "fill"));
  SHOW(cuModuleGetGlobal(&address, &size, module, "absent"));
  SHOW(cuModuleGetGlobal(&address, &size, module, nullptr));
  SHOW(cuModuleGetGlobal(&address, &size, nullptr, "table"));
  SHOW(cuModuleGetGlobal(&address, &size, wild<CUmodule>(), "table"));
  SHOW(cuMemFree(address));
  SHOW(cuMemsetD8(address, 0, size));
  SHOW(cuMemsetD8(address, 0, size + 1000));
  CUmoduleLoadingMode mode{};
  SHOW_VALUE(cuModuleGetLoadingMode(&mode), "%d", mode);
  SHOW(cuModuleGetLoadingMode(nullptr));
  for (int attribute = -1; attribute < 20; ++attribute) {
    number = -1;
    const CUresult result = cuFuncGetAttribute(&number, static_cast<CUfunction_attribute>(attribute), fill);
    std::printf("function attribute %d -> %s %d\n", attribute, name_of(result), number);
  }
  SHOW(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, fill));
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr));
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, wild<CUfunction>()));
  SHOW(cuFuncSetAttribute(nothing, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60'000));
  SHOW_VALUE(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, nothing), "%d", number);
  SHOW(launch(nothing, 1, 1, 60'000, nullptr, nullptr));
  SHOW(launch(nothing, 1, 1, 60'001, nullptr, nullptr));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 10'000'000));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_NUM_REGS, 5));
  SHOW(cuFuncSetAttribute(fill, static_cast<CUfunction_attribute>(99), 5));
  SHOW(cuFuncSetAttribute(nullptr, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 5));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  SHOW(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101));
  SHOW(cuFuncSetCacheConfig(fill, CU_FUNC_CACHE_PREFER_L1));
  SHOW(cuFuncSetCacheConfig(fill, static_cast<CUfunc_cache>(9)));
  SHOW(cuFuncSetCacheConfig(nullptr, CU_FUNC_CACHE_PREFER_L1));
  SHOW_VALUE(cuFuncGetName(&name, fill), "%s", name);
  SHOW(cuFuncGetName(nullptr, fill));
  SHOW(cuFuncGetName(&name, wild<CUfunction>()));
  for (size_t index = 0; index < 4; ++index) {
    const CUresult result = cuFuncGetParamInfo(fill, index, &offset, &size);
    std::printf("parameter %zu -> %s %zu %zu\n", index, name_of(result), result ? 0 : offset, result ? 0 : size);
  }
  SHOW(cuFuncGetParamInfo(fill, 0, nullptr, &size));
  SHOW(cuFuncGetParamInfo(fill, 0, &offset, nullptr));
  CUfunctionLoadingState state{};
  SHOW_VALUE(cuFuncIsLoaded(&state, fill), "%d", state);
  SHOW(cuFuncIsLoaded(nullptr, fill));
  SHOW(cuFuncLoad(fill));
  SHOW(cuFuncLoad(nullptr));
  CUmodule of = nullptr;
  SHOW_VALUE(cuFuncGetModule(&of, fill), "%d", of == module);
  SHOW(cuFuncGetModule(nullptr, fill));
  SHOW(cuFuncGetModule(&of, wild<CUfunction>()));
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, fill, 128, 0), "%d", number);
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, fill, 0, 0));
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, fill, 5000, 0), "%d", number);
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, fill, 128, 0));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, nullptr, 128, 0));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&number, fill, 128, 0, 99));
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSize(&number, &other, fill, nullptr, 0, 0), "%d %d", number, other);
  SHOW_VALUE(cuOccupancyMaxPotentialBlockSize(&number, &other, fill, nullptr, 0, 100), "%d %d", number, other);
  SHOW(cuOccupancyMaxPotentialBlockSize(nullptr, &other, fill, nullptr, 0, 0));
  SHOW(cuOccupancyMaxPotentialBlockSize(&number, &other, wild<CUfunction>(), nullptr, 0, 0));
  SHOW_VALUE(cuOccupancyAvailableDynamicSMemPerBlock(&size, fill, 2, 128), "%zu", size);
  SHOW(cuOccupancyAvailableDynamicSMemPerBlock(nullptr, fill, 2, 128));
  SHOW(cuOccupancyAvailableDynamicSMemPerBlock(&size, fill, 0, 128));
  launches(fill, nothing);
  SHOW(cuModuleUnload(nullptr));
  SHOW(cuModuleUnload(wild<CUmodule>()));
  SHOW(cuModuleUnload(module));
  SHOW(cuModuleUnload(module));
  SHOW(cuModuleGetFunction(&function, module, "fill"));
  SHOW(launch(nothing, 1, 1, 0, nullptr, nullptr));
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, nothing));
  SHOW(cuModuleUnload(second));
  SHOW(cuCtxSynchronize());
}

void libraries() {
#if CUDA_VERSION >= 12000
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr address = 0;
  size_t size = 0, offset = 0;
  int number = 0;
  const char* name = nullptr;
  SHOW(cuLibraryLoadData(nullptr, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, "garbage", nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 1, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 1));
  SHOW(cuLibraryLoadFromFile(&library, "/no/such/file", nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryGetKernel(nullptr, library, "nothing"));
  SHOW(cuLibraryGetKernel(&kernel, nullptr, "nothing"));
  SHOW(cuLibraryGetKernel(&kernel, wild<CUlibrary>(), "nothing"));
  SHOW(cuLibraryGetKernel(&kernel, library, nullptr));
  SHOW(cuLibraryGetKernel(&kernel, library, "absent"));
  SHOW(cuLibraryGetKernel(&kernel, library, "fill"));
  SHOW_VALUE(cuLibraryGetGlobal(&address, &size, library, "counter"), "%zu", size);
  SHOW(cuLibraryGetGlobal(&address, &size, library, "absent"));
  SHOW(cuLibraryGetGlobal(&address, &size, wild<CUlibrary>(), "counter"));
  SHOW(cuLibraryGetManaged(&address, &size, library, "counter"));
  SHOW(cuKernelGetFunction(nullptr, kernel));
  SHOW(cuKernelGetFunction(&function, nullptr));
  SHOW(cuKernelGetFunction(&function, wild<CUkernel>()));
  SHOW(cuKernelGetFunction(&function, kernel));
  SHOW_VALUE(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0), "%d", number);
  SHOW(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 9));
  SHOW(cuKernelGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  SHOW(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, wild<CUkernel>(), 0));
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50'000, kernel, 0));
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 50'000, kernel, 9));
  SHOW(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 5, kernel, 0));
  SHOW_VALUE(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0), "%d", number);
  SHOW(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, 0));
  SHOW(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, 9));
  SHOW_VALUE(cuKernelGetName(&name, kernel), "%s", name);
  SHOW(cuKernelGetName(&name, wild<CUkernel>()));
  SHOW_VALUE(cuKernelGetParamInfo(kernel, 1, &offset, &size), "%zu %zu", offset, size);
  SHOW(cuKernelGetParamInfo(kernel, 3, &offset, &size));
  CUdeviceptr out = 0;
  unsigned value = 1, count = 100;
  cuMemAlloc(&out, 4096);
  void* parameters[] = {&out, &value, &count};
  SHOW(launch(function, 1, 128, 0, nullptr, parameters));
  SHOW(launch(reinterpret_cast<CUfunction>(kernel), 1, 128, 0, nullptr, parameters));
  SHOW_VALUE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, reinterpret_cast<CUfunction>(kernel), 128, 0), "%d", number);
  SHOW(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  SHOW(cuCtxSynchronize());
  SHOW(cuLibraryUnload(nullptr));
  SHOW(cuLibraryUnload(wild<CUlibrary>()));
  SHOW(cuLibraryUnload(library));
  SHOW(cuLibraryUnload(library));
  SHOW(cuLibraryGetKernel(&kernel, library, "fill"));
  SHOW(cuKernelGetFunction(&function, kernel));
  SHOW(launch(reinterpret_cast<CUfunction>(kernel), 1, 128, 0, nullptr, parameters));
  SHOW(cuCtxSynchronize());
#endif
}

// Things of a context that is gone.
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
  SHOW(cuCtxPushCurrent(context));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuStreamQuery(stream));
  SHOW(cuStreamDestroy(stream));
  SHOW(cuEventQuery(event));
  SHOW(cuEventRecord(event, nullptr));
  SHOW(cuEventElapsedTime(&milliseconds, event, event));
  SHOW(cuEventDestroy(event));
  SHOW(cuModuleGetFunction(&function, module, "fill"));
  SHOW(launch(function, 1, 1, 0, nullptr, nullptr));
  SHOW(cuModuleUnload(module));
  SHOW(cuMemsetD8(address, 1, 10));
  SHOW(cuMemcpyDtoH(&milliseconds, address, 4));
  SHOW(cuMemFree(address));
  SHOW(cuCtxSynchronize());
}

// What frees or destroys needs no current context.
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
