// The functions that a session asks for at its start and that poold's tests never call. They are declared
// without cuda.h, so one form does for all.
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
