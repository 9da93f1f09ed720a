// Stubs of the functions that a session looks up at its start and poold's tests never call. Declared without
// cuda.h, so that one form fits all.
#define UNUSED_CALL(name)                                        \
  extern "C" __attribute__((visibility("default"))) int name() { \
    return 801;                                                  \
  }  // CUDA_ERROR_NOT_SUPPORTED

UNUSED_CALL(cuCtxSynchronize)
UNUSED_CALL(cuStreamQuery)
UNUSED_CALL(cuStreamSynchronize)
UNUSED_CALL(cuStreamDestroy_v2)
UNUSED_CALL(cuEventCreate)
UNUSED_CALL(cuEventDestroy_v2)
UNUSED_CALL(cuEventRecord)
UNUSED_CALL(cuEventQuery)
UNUSED_CALL(cuEventSynchronize)
UNUSED_CALL(cuMemHostAlloc)
UNUSED_CALL(cuMemFreeHost)
UNUSED_CALL(cuMemcpyHtoDAsync_v2)
UNUSED_CALL(cuMemcpyDtoHAsync_v2)
UNUSED_CALL(cuMemcpy2DAsync_v2)
UNUSED_CALL(cuModuleLoadDataEx)
UNUSED_CALL(cuModuleUnload)
UNUSED_CALL(cuModuleGetFunction)
UNUSED_CALL(cuModuleGetGlobal_v2)
UNUSED_CALL(cuFuncGetAttribute)
UNUSED_CALL(cuLaunchKernel)
