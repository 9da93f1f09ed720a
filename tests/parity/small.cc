// Stream attributes, events of whole contexts, and the first versions of stream memory operations.
#define __CUDA_API_VERSION_INTERNAL  // declares every version under its own name
#include <cuda.h>

#include <initializer_list>

#include "tests/parity/show.h"

namespace parity {
namespace {

void show_attributes(CUstream stream) {
  for (int id = -1; id < 20; ++id) {
    CUstreamAttrValue value{};
    const CUresult result = cuStreamGetAttribute(stream, static_cast<CUstreamAttrID>(id), &value);
    std::printf("attribute %d -> %s", id, name_of(result));
    if (result == CUDA_SUCCESS) {
      for (size_t i = 0; i < 32; ++i) std::printf(" %02x", static_cast<unsigned char>(value.pad[i]));
    }
    std::printf("\n");
  }
}

void stream_attribute_calls() {
  CUstream stream = nullptr, other = nullptr;
  int priority = 9;
  CUstreamAttrValue value{};
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&other, CU_STREAM_DEFAULT);
  show_attributes(stream);
  show_attributes(nullptr);
  const auto set = [&](int id) {
    return cuStreamSetAttribute(stream, static_cast<CUstreamAttrID>(id), &value);
  };
  for (const int policy : {0, 1, 4, 5}) {
    value = {};
    value.syncPolicy = static_cast<CUsynchronizationPolicy>(policy);
    SHOW(set(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY));
  }
  for (const int wished : {-1, -1000, 1000, -2}) {
    value = {};
    value.priority = wished;
    SHOW(set(CU_LAUNCH_ATTRIBUTE_PRIORITY));
    SHOW_VALUE(cuStreamGetPriority(stream, &priority), "%d", priority);
  }
  value = {};
  SHOW(set(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW));
  value.accessPolicyWindow.hitRatio = 0.5f;
  value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
  SHOW(set(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW));
  value.accessPolicyWindow.hitRatio = 1.5f;
  SHOW(set(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW));
  value.accessPolicyWindow.hitRatio = 0.5f;
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_PERSISTING;
  SHOW(set(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW));
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_NORMAL;
  value.accessPolicyWindow.base_ptr = wild<void*>();
  value.accessPolicyWindow.num_bytes = 4096;
  SHOW(set(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW));
  value = {};
  value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  SHOW(set(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN));
  value.memSyncDomain = static_cast<CUlaunchMemSyncDomain>(7);
  SHOW(set(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN));
  value = {};
  value.memSyncDomainMap.remote = 200;
  SHOW(set(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP));
  SHOW(set(CU_LAUNCH_ATTRIBUTE_COOPERATIVE));
  SHOW(set(CU_LAUNCH_ATTRIBUTE_IGNORE));
  SHOW(set(99));
  SHOW(set(-1));
  show_attributes(stream);
  SHOW(cuStreamCopyAttributes(other, stream));
  show_attributes(other);
  SHOW_VALUE(cuStreamGetPriority(other, &priority), "%d", priority);
  SHOW(cuStreamCopyAttributes(other, other));
  SHOW(cuStreamCopyAttributes(other, wild<CUstream>()));
  SHOW(cuStreamCopyAttributes(wild<CUstream>(), other));
  SHOW(cuStreamCopyAttributes_ptsz(nullptr, stream));
  SHOW(cuStreamSetAttribute_ptsz(nullptr, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, nullptr));
  SHOW(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr));
  SHOW(cuStreamSetAttribute(wild<CUstream>(), CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  SHOW(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr));
  SHOW(cuStreamGetAttribute(wild<CUstream>(), CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  SHOW_VALUE(cuStreamGetAttribute_ptsz(nullptr, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value), "%d",
             value.syncPolicy);
  SHOW(cuStreamDestroy(other));
  SHOW(cuStreamDestroy(other));
  SHOW(cuStreamCopyAttributes(stream, other));
  SHOW(cuStreamDestroy(stream));
}

void first_memory_operations() {
  CUstream stream = nullptr;
  CUdeviceptr words = 0;
  unsigned value = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc_v2(&words, 64);
  cuMemsetD8_v2(words, 0, 64);
  cuCtxSynchronize();
  SHOW(cuStreamWriteValue32(stream, words, 7, 0));
  SHOW(cuStreamWaitValue32(stream, words, 7, CU_STREAM_WAIT_VALUE_EQ));
  SHOW(cuStreamWriteValue64(stream, words + 8, 9, 0));
  SHOW(cuStreamWaitValue64(stream, words + 8, 9, CU_STREAM_WAIT_VALUE_GEQ));
  LATE(cuStreamWaitValue32(stream, kWildAddress, 7, CU_STREAM_WAIT_VALUE_EQ));
  LATE(cuStreamWaitValue64(stream, words + 4, 7, CU_STREAM_WAIT_VALUE_EQ));
  LATE(cuStreamWriteValue32(stream, 0, 7, 0));
  SHOW(cuStreamWriteValue64(wild<CUstream>(), words, 7, 0));
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = words + 16;
  operations[0].writeValue.value = 11;
  operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[1].waitValue.address = words + 16;
  operations[1].waitValue.value = 11;
  operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  SHOW(cuStreamBatchMemOp(stream, 2, operations, 0));
  LATE(cuStreamBatchMemOp(stream, 0, operations, 0));
  LATE(cuStreamBatchMemOp(stream, 2, nullptr, 0));
  SHOW(cuStreamSynchronize(stream));
  SHOW_VALUE(cuMemcpyDtoH_v2(&value, words + 16, sizeof value), "%u", value);
  SHOW(cuStreamDestroy(stream));
  cuMemFree_v2(words);
}

void flushes() {
  SHOW(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
  SHOW(cuFlushGPUDirectRDMAWrites(static_cast<CUflushGPUDirectRDMAWritesTarget>(9),
                                  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
  SHOW(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                  static_cast<CUflushGPUDirectRDMAWritesScope>(9)));
}

// Neither softgpu nor the pool supports execution affinity, and NVIDIA's driver only with MPS.
void affinity() {
  CUexecAffinityParam one{};
  one.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  one.param.smCount.val = 1;
  CUcontext made = nullptr;
  REQUIRE(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, cuCtxCreate_v3(&made, &one, 1, 0, 0));
#if CUDA_VERSION >= 12050
  CUctxCreateParams params{};
  params.execAffinityParams = &one;
  params.numExecAffinityParams = 1;
  REQUIRE(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, cuCtxCreate_v4(&made, &params, 0, 0));
#endif
  SHOW(cuCtxGetExecAffinity(&one, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
  SHOW(cuCtxGetExecAffinity(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
}

void context_events() {
  CUcontext context = nullptr, second = nullptr;
  CUstream stream = nullptr, later = nullptr;
  CUevent event = nullptr, of_second = nullptr;
  CUdeviceptr word = 0;
  CUgraph graph = nullptr;
  unsigned value = 0;
  cuCtxGetCurrent(&context);
  cuMemAlloc_v2(&word, 64);
  cuMemsetD8_v2(word, 0, 64);
  cuCtxSynchronize();
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&later, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, 0);
  SHOW(cuCtxRecordEvent(context, event));
  SHOW(cuEventSynchronize(event));
  // Work after a context's wait comes after the work that the event captured, in every stream.
  SHOW(cuStreamWaitValue32_v2(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  SHOW(cuStreamWriteValue32_v2(stream, word + 4, 5, 0));
  SHOW(cuCtxRecordEvent(context, event));
  SHOW(cuEventQuery(event));
  SHOW(cuCtxWaitEvent(context, event));
  SHOW(cuStreamQuery(stream));
  cuMemsetD32Async(word + 8, 3, 1, later);
  SHOW(cuStreamQuery(later));
  SHOW(cuCtxCreate_v2(&second, 0, 0));
  SHOW(cuEventCreate(&of_second, 0));
  SHOW(cuCtxRecordEvent(context, of_second));
  SHOW(cuCtxRecordEvent(second, of_second));
  SHOW(cuCtxWaitEvent(second, of_second));
  CUstream releasing = nullptr;
  cuStreamCreate(&releasing, CU_STREAM_NON_BLOCKING);
  SHOW(cuStreamWriteValue32_v2(releasing, word, 1, 0));
  SHOW(cuCtxSynchronize());
  SHOW(cuCtxSetCurrent(context));
  SHOW(cuEventSynchronize(event));
  SHOW_VALUE(cuMemcpyDtoH_v2(&value, word + 4, sizeof value), "%u", value);
  SHOW(cuStreamSynchronize(later));
  SHOW_VALUE(cuMemcpyDtoH_v2(&value, word + 8, sizeof value), "%u", value);
  SHOW(cuCtxRecordEvent(nullptr, event));
  SHOW(cuCtxWaitEvent(nullptr, event));
  SHOW(cuCtxRecordEvent(wild<CUcontext>(), event));
  SHOW(cuCtxWaitEvent(wild<CUcontext>(), event));
  SHOW(cuCtxRecordEvent(context, nullptr));
  SHOW(cuCtxRecordEvent(context, wild<CUevent>()));
  SHOW(cuCtxWaitEvent(context, nullptr));
  SHOW(cuCtxWaitEvent(context, of_second));
  SHOW(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  SHOW(cuCtxRecordEvent(context, event));
  SHOW(cuStreamEndCapture(stream, &graph));
  SHOW(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  SHOW(cuCtxWaitEvent(context, event));
  SHOW(cuStreamEndCapture(stream, &graph));
  SHOW(cuEventDestroy(event));
  SHOW(cuEventDestroy(event));
  SHOW(cuCtxDestroy_v2(second));
  cuMemFree_v2(word);
}

}  // namespace

void small_calls() {
  stream_attribute_calls();
  if (!guard.on) first_memory_operations();  // NVIDIA's driver has them only if an administrator enables them
  flushes();
  affinity();
  context_events();
}

}  // namespace parity
