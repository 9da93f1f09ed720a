// The _ptsz and _ptds symbols, which programs compiled for per-thread default streams call. Each calls the
// plain function; stream 0 means the calling thread's default stream. CUDA_ANSWER_ON_STREAM rows of the call
// table get theirs here, CUDA_OLDER_ON_STREAM and CUDA_ROW_COPY_ASYNC rows in protocol/calls/common_calls/.
#include "protocol/driver/export_function.h"
#include "server/softgpu/runtime/api/call.h"

using namespace gpupool::softgpu::api;

namespace {

template <auto function>
struct PerThread;
template <class... Arguments, CUresult (*function)(Arguments...)>
struct PerThread<function> {
  static CUresult call(Arguments... arguments) {
    const PerThreadDefaultStream scope;
    return function(arguments...);
  }
  // For functions that call others of the driver API with their stream.
  static CUresult call_by_argument(Arguments... arguments) { return function(or_per_thread(arguments)...); }
};

}  // namespace

#define PTSZ(name) GPUPOOL_EXPORT_FUNCTION(name##_ptsz, PerThread<&name>::call)
#define PTDS(name) GPUPOOL_EXPORT_FUNCTION(name##_ptds, PerThread<&name>::call)
#define PTSZ_BY_ARGUMENT(name) GPUPOOL_EXPORT_FUNCTION(name##_ptsz, PerThread<&name>::call_by_argument)

#define CUDA_ANSWER_ON_STREAM(name, ...) PTSZ(name)
#define CUDA_ANSWER(...)
#define CUDA_CHECK(...)
#define CUDA_CALL(...)
#define CUDA_CALL_CUSTOM_EXPORT(...)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND

PTSZ(cuEventRecordWithFlags)
PTSZ(cuEventRecord)
PTSZ(cuGraphLaunch)
PTSZ(cuGraphUpload)
PTSZ(cuLaunchCooperativeKernel)
PTSZ(cuLaunchHostFunc)
PTSZ(cuLaunchKernelEx)
PTSZ(cuLaunchKernel)
PTSZ(cuMemAllocAsync)
PTSZ(cuMemAllocFromPoolAsync)
PTSZ(cuMemFreeAsync)
PTSZ(cuMemPrefetchAsync)
PTSZ(cuMemcpy2DAsync_v2)
PTDS(cuMemcpy2DUnaligned_v2)
PTDS(cuMemcpy2D_v2)
PTSZ(cuMemcpy3DAsync_v2)
PTDS(cuMemcpy3D_v2)
PTSZ(cuMemcpyAsync)
PTSZ(cuMemcpyDtoDAsync_v2)
PTDS(cuMemcpyDtoD_v2)
PTSZ(cuMemcpyDtoHAsync_v2)
PTDS(cuMemcpyDtoH_v2)
PTSZ(cuMemcpyHtoDAsync_v2)
PTDS(cuMemcpyHtoD_v2)
PTSZ(cuMemcpyPeerAsync)
PTDS(cuMemcpyPeer)
PTDS(cuMemcpy)
PTSZ(cuMemsetD16Async)
PTDS(cuMemsetD16_v2)
PTSZ(cuMemsetD2D16Async)
PTDS(cuMemsetD2D16_v2)
PTSZ(cuMemsetD2D32Async)
PTDS(cuMemsetD2D32_v2)
PTSZ(cuMemsetD2D8Async)
PTDS(cuMemsetD2D8_v2)
PTSZ(cuMemsetD32Async)
PTDS(cuMemsetD32_v2)
PTSZ(cuMemsetD8Async)
PTDS(cuMemsetD8_v2)
PTSZ(cuStreamAddCallback)
PTSZ_BY_ARGUMENT(cuStreamAttachMemAsync)
PTSZ(cuStreamBatchMemOp_v2)
PTSZ(cuStreamBeginCapture_v2)
PTSZ(cuStreamCopyAttributes)
PTSZ(cuStreamEndCapture)
PTSZ(cuStreamGetAttribute)
PTSZ(cuStreamGetCaptureInfo_v2)
PTSZ(cuStreamQuery)
PTSZ(cuStreamSetAttribute)
PTSZ(cuStreamSynchronize)
PTSZ(cuStreamUpdateCaptureDependencies)
PTSZ(cuStreamWaitEvent)
PTSZ(cuStreamWaitValue32_v2)
PTSZ(cuStreamWaitValue64_v2)
PTSZ(cuStreamWriteValue32_v2)
PTSZ(cuStreamWriteValue64_v2)
#if CUDA_VERSION >= 12000
PTSZ(cuGraphInstantiateWithParams)
#endif
#if CUDA_VERSION >= 12020
PTSZ(cuMemPrefetchAsync_v2)
#endif
#if CUDA_VERSION >= 12030
PTSZ(cuStreamBeginCaptureToGraph)
PTSZ(cuStreamGetCaptureInfo_v3)
PTSZ(cuStreamUpdateCaptureDependencies_v2)
#endif
#if CUDA_VERSION >= 12050
PTSZ(cuStreamGetCtx_v2)
#endif
#if CUDA_VERSION >= 13000
PTSZ_BY_ARGUMENT(cuMemPrefetchBatchAsync)
PTSZ_BY_ARGUMENT(cuMemDiscardBatchAsync)
PTSZ_BY_ARGUMENT(cuMemDiscardAndPrefetchBatchAsync)
#endif
