// The _ptds and _ptsz symbols, which programs compiled for per-thread default streams call. Each calls the
// plain function; stream 0 means the calling thread's default stream.
#include "server/softgpu/runtime/api/call.h"

using namespace gpupool::softgpu::api;

namespace {

template <class Function, class... Arguments>
CUresult per_thread(Function function, Arguments... arguments) {
  const PerThreadDefaultStream scope;
  return function(arguments...);
}

}  // namespace

CUDA_EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return per_thread(cuEventRecordWithFlags, hEvent, hStream, flags);
}
CUDA_EXPORT CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) {
  return per_thread(cuEventRecord, hEvent, hStream);
}
CUDA_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return per_thread(cuGraphLaunch, hGraphExec, hStream);
}
CUDA_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return per_thread(cuGraphUpload, hGraphExec, hStream);
}
CUDA_EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX,
                                                    unsigned int gridDimY, unsigned int gridDimZ,
                                                    unsigned int blockDimX, unsigned int blockDimY,
                                                    unsigned int blockDimZ, unsigned int sharedMemBytes,
                                                    CUstream hStream, void** kernelParams) {
  return per_thread(cuLaunchCooperativeKernel, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                    blockDimZ, sharedMemBytes, hStream, kernelParams);
}
CUDA_EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream hStream, CUhostFn fn, void* userData) {
  return per_thread(cuLaunchHostFunc, hStream, fn, userData);
}
CUDA_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                           void** extra) {
  return per_thread(cuLaunchKernelEx, config, f, kernelParams, extra);
}
CUDA_EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                         unsigned int gridDimZ, unsigned int blockDimX,
                                         unsigned int blockDimY, unsigned int blockDimZ,
                                         unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,
                                         void** extra) {
  return per_thread(cuLaunchKernel, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                    sharedMemBytes, hStream, kernelParams, extra);
}
CUDA_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return per_thread(cuMemAllocAsync, dptr, bytesize, hStream);
}
CUDA_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                                  CUstream hStream) {
  return per_thread(cuMemAllocFromPoolAsync, dptr, bytesize, pool, hStream);
}
CUDA_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return per_thread(cuMemFreeAsync, dptr, hStream);
}
CUDA_EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                             CUstream hStream) {
  return per_thread(cuMemPrefetchAsync, devPtr, count, dstDevice, hStream);
}
CUDA_EXPORT CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return per_thread(cuMemcpy2DAsync_v2, pCopy, hStream);
}
CUDA_EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* pCopy) {
  return per_thread(cuMemcpy2DUnaligned_v2, pCopy);
}
CUDA_EXPORT CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* pCopy) {
  return per_thread(cuMemcpy2D_v2, pCopy);
}
CUDA_EXPORT CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return per_thread(cuMemcpy3DAsync_v2, pCopy, hStream);
}
CUDA_EXPORT CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* pCopy) {
  return per_thread(cuMemcpy3D_v2, pCopy);
}
CUDA_EXPORT CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                        CUstream hStream) {
  return per_thread(cuMemcpyAsync, dst, src, ByteCount, hStream);
}
CUDA_EXPORT CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                               CUstream hStream) {
  return per_thread(cuMemcpyDtoDAsync_v2, dstDevice, srcDevice, ByteCount, hStream);
}
CUDA_EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return per_thread(cuMemcpyDtoD_v2, dstDevice, srcDevice, ByteCount);
}
CUDA_EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                               CUstream hStream) {
  return per_thread(cuMemcpyDtoHAsync_v2, dstHost, srcDevice, ByteCount, hStream);
}
CUDA_EXPORT CUresult cuMemcpyDtoH_v2_ptds(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return per_thread(cuMemcpyDtoH_v2, dstHost, srcDevice, ByteCount);
}
CUDA_EXPORT CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                               CUstream hStream) {
  return per_thread(cuMemcpyHtoDAsync_v2, dstDevice, srcHost, ByteCount, hStream);
}
CUDA_EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return per_thread(cuMemcpyHtoD_v2, dstDevice, srcHost, ByteCount);
}
CUDA_EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dstDevice, CUcontext dstContext,
                                            CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                                            CUstream hStream) {
  return per_thread(cuMemcpyPeerAsync, dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream);
}
CUDA_EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                       CUcontext srcContext, size_t ByteCount) {
  return per_thread(cuMemcpyPeer, dstDevice, dstContext, srcDevice, srcContext, ByteCount);
}
CUDA_EXPORT CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return per_thread(cuMemcpy, dst, src, ByteCount);
}
CUDA_EXPORT CUresult cuMemsetD16Async_ptsz(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                           CUstream hStream) {
  return per_thread(cuMemsetD16Async, dstDevice, us, N, hStream);
}
CUDA_EXPORT CUresult cuMemsetD16_v2_ptds(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return per_thread(cuMemsetD16_v2, dstDevice, us, N);
}
CUDA_EXPORT CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                             size_t Width, size_t Height, CUstream hStream) {
  return per_thread(cuMemsetD2D16Async, dstDevice, dstPitch, us, Width, Height, hStream);
}
CUDA_EXPORT CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                           size_t Width, size_t Height) {
  return per_thread(cuMemsetD2D16_v2, dstDevice, dstPitch, us, Width, Height);
}
CUDA_EXPORT CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                             size_t Width, size_t Height, CUstream hStream) {
  return per_thread(cuMemsetD2D32Async, dstDevice, dstPitch, ui, Width, Height, hStream);
}
CUDA_EXPORT CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                           size_t Width, size_t Height) {
  return per_thread(cuMemsetD2D32_v2, dstDevice, dstPitch, ui, Width, Height);
}
CUDA_EXPORT CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                            size_t Width, size_t Height, CUstream hStream) {
  return per_thread(cuMemsetD2D8Async, dstDevice, dstPitch, uc, Width, Height, hStream);
}
CUDA_EXPORT CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                          size_t Width, size_t Height) {
  return per_thread(cuMemsetD2D8_v2, dstDevice, dstPitch, uc, Width, Height);
}
CUDA_EXPORT CUresult cuMemsetD32Async_ptsz(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                           CUstream hStream) {
  return per_thread(cuMemsetD32Async, dstDevice, ui, N, hStream);
}
CUDA_EXPORT CUresult cuMemsetD32_v2_ptds(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return per_thread(cuMemsetD32_v2, dstDevice, ui, N);
}
CUDA_EXPORT CUresult cuMemsetD8Async_ptsz(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                          CUstream hStream) {
  return per_thread(cuMemsetD8Async, dstDevice, uc, N, hStream);
}
CUDA_EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return per_thread(cuMemsetD8_v2, dstDevice, uc, N);
}
CUDA_EXPORT CUresult cuStreamAddCallback_ptsz(CUstream hStream, CUstreamCallback callback, void* userData,
                                              unsigned int flags) {
  return per_thread(cuStreamAddCallback, hStream, callback, userData, flags);
}
CUDA_EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream hStream, CUdeviceptr dptr, size_t length,
                                                 unsigned int flags) {
  return cuStreamAttachMemAsync(or_per_thread(hStream), dptr, length, flags);
}
CUDA_EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count,
                                                CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return per_thread(cuStreamBatchMemOp_v2, stream, count, paramArray, flags);
}
CUDA_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
  return per_thread(cuStreamBeginCapture_v2, hStream, mode);
}
CUDA_EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream dst, CUstream src) {
  return per_thread(cuStreamCopyAttributes, dst, src);
}
CUDA_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph* phGraph) {
  return per_thread(cuStreamEndCapture, hStream, phGraph);
}
CUDA_EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream hStream, CUstreamAttrID attr,
                                               CUstreamAttrValue* value_out) {
  return per_thread(cuStreamGetAttribute, hStream, attr, value_out);
}
CUDA_EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream hStream,
                                                    CUstreamCaptureStatus* captureStatus_out,
                                                    cuuint64_t* id_out, CUgraph* graph_out,
                                                    const CUgraphNode** dependencies_out,
                                                    size_t* numDependencies_out) {
  return per_thread(cuStreamGetCaptureInfo_v2, hStream, captureStatus_out, id_out, graph_out,
                    dependencies_out, numDependencies_out);
}
CUDA_EXPORT CUresult cuStreamGetCtx_ptsz(CUstream hStream, CUcontext* pctx) {
  return per_thread(cuStreamGetCtx, hStream, pctx);
}
CUDA_EXPORT CUresult cuStreamGetFlags_ptsz(CUstream hStream, unsigned int* flags) {
  return per_thread(cuStreamGetFlags, hStream, flags);
}
CUDA_EXPORT CUresult cuStreamGetPriority_ptsz(CUstream hStream, int* priority) {
  return per_thread(cuStreamGetPriority, hStream, priority);
}
CUDA_EXPORT CUresult cuStreamQuery_ptsz(CUstream hStream) {
  return per_thread(cuStreamQuery, hStream);
}
CUDA_EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream hStream, CUstreamAttrID attr,
                                               const CUstreamAttrValue* value) {
  return per_thread(cuStreamSetAttribute, hStream, attr, value);
}
CUDA_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream hStream) {
  return per_thread(cuStreamSynchronize, hStream);
}
CUDA_EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream hStream, CUgraphNode* dependencies,
                                                            size_t numDependencies, unsigned int flags) {
  return per_thread(cuStreamUpdateCaptureDependencies, hStream, dependencies, numDependencies, flags);
}
CUDA_EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return per_thread(cuStreamWaitEvent, hStream, hEvent, Flags);
}
CUDA_EXPORT CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                                 unsigned int flags) {
  return per_thread(cuStreamWaitValue32_v2, stream, addr, value, flags);
}
CUDA_EXPORT CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                                 unsigned int flags) {
  return per_thread(cuStreamWaitValue64_v2, stream, addr, value, flags);
}
CUDA_EXPORT CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                                  unsigned int flags) {
  return per_thread(cuStreamWriteValue32_v2, stream, addr, value, flags);
}
CUDA_EXPORT CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                                  unsigned int flags) {
  return per_thread(cuStreamWriteValue64_v2, stream, addr, value, flags);
}
#if CUDA_VERSION >= 12000
CUDA_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return per_thread(cuGraphInstantiateWithParams, phGraphExec, hGraph, instantiateParams);
}
CUDA_EXPORT CUresult cuStreamGetId_ptsz(CUstream hStream, unsigned long long* streamId) {
  return per_thread(cuStreamGetId, hStream, streamId);
}
#endif
#if CUDA_VERSION >= 12020
CUDA_EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                                unsigned int flags, CUstream hStream) {
  return per_thread(cuMemPrefetchAsync_v2, devPtr, count, location, flags, hStream);
}
#endif
#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph,
                                                      const CUgraphNode* dependencies,
                                                      const CUgraphEdgeData* dependencyData,
                                                      size_t numDependencies, CUstreamCaptureMode mode) {
  return per_thread(cuStreamBeginCaptureToGraph, hStream, hGraph, dependencies, dependencyData,
                    numDependencies, mode);
}
CUDA_EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(
    CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out, CUgraph* graph_out,
    const CUgraphNode** dependencies_out, const CUgraphEdgeData** edgeData_out, size_t* numDependencies_out) {
  return per_thread(cuStreamGetCaptureInfo_v3, hStream, captureStatus_out, id_out, graph_out,
                    dependencies_out, edgeData_out, numDependencies_out);
}
CUDA_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream hStream, CUgraphNode* dependencies,
                                                               const CUgraphEdgeData* dependencyData,
                                                               size_t numDependencies, unsigned int flags) {
  return per_thread(cuStreamUpdateCaptureDependencies_v2, hStream, dependencies, dependencyData,
                    numDependencies, flags);
}
#endif
#if CUDA_VERSION >= 12050
CUDA_EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  return per_thread(cuStreamGetCtx_v2, hStream, pCtx, pGreenCtx);
}
#endif
#if CUDA_VERSION >= 12080
CUDA_EXPORT CUresult cuStreamGetDevice_ptsz(CUstream hStream, CUdevice* device) {
  return per_thread(cuStreamGetDevice, hStream, device);
}
#endif
#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                                  CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                                  size_t numPrefetchLocs, unsigned long long flags,
                                                  CUstream hStream) {
  return cuMemPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags,
                                 or_per_thread(hStream));
}
CUDA_EXPORT CUresult cuMemDiscardBatchAsync_ptsz(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                                 unsigned long long flags, CUstream hStream) {
  return cuMemDiscardBatchAsync(dptrs, sizes, count, flags, or_per_thread(hStream));
}
CUDA_EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                                            CUmemLocation* prefetchLocs,
                                                            size_t* prefetchLocIdxs, size_t numPrefetchLocs,
                                                            unsigned long long flags, CUstream hStream) {
  return cuMemDiscardAndPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                           numPrefetchLocs, flags, or_per_thread(hStream));
}
#endif
