// Stream memory operations: waiting for and writing values.
#include <vector>

#include "server/softgpu/runtime/api/copy.h"
#include "server/softgpu/runtime/api/graph.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

// make_wait() and make_write() return null for invalid flags.
Ref<Op> make_wait(uint64_t address, uint64_t value, bool wide, unsigned flags) {
  ValueCondition condition;
  switch (flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)) {
    case CU_STREAM_WAIT_VALUE_GEQ: condition = ValueCondition::at_least; break;
    case CU_STREAM_WAIT_VALUE_EQ: condition = ValueCondition::equal; break;
    case CU_STREAM_WAIT_VALUE_AND: condition = ValueCondition::any_bit; break;
    case CU_STREAM_WAIT_VALUE_NOR: condition = ValueCondition::any_bit_clear; break;
    default: return nullptr;
  }
  return make_ref<ValueWaitOp>(address, value, wide, condition);
}

Ref<Op> make_write(uint64_t address, uint64_t value, bool wide, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) != 0) return nullptr;
  return make_ref<ValueWriteOp>(address, value, wide);
}

bool valid_word(uint64_t address, bool wide, bool write, std::optional<int> device) {
  const uint64_t bytes = wide ? 8 : 4;
  return address % bytes == 0 && runtime().memory().accessible(address, bytes, write, device);
}

CUresult enqueue_word(CUstream handle, uint64_t address, uint64_t value, bool wide, unsigned flags,
                      bool write) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (!valid_word(address, wide, write, accessing_device(stream.context())))
      return CUDA_ERROR_INVALID_VALUE;
    const Ref<Op> op =
        write ? make_write(address, value, wide, flags) : make_wait(address, value, wide, flags);
    return op ? stream.context().enqueue(stream, op) : CUDA_ERROR_INVALID_VALUE;
  });
}

// Returns null for invalid parameters.
Ref<Op> make_batched(const CUstreamBatchMemOpParams& parameters, std::optional<int> device) {
  switch (parameters.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
      const auto& wait = parameters.waitValue;
      const bool wide = parameters.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
      if (!valid_word(wait.address, wide, false, device)) return nullptr;
      return make_wait(wait.address, wide ? wait.value64 : wait.value, wide, wait.flags);
    }
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: {
      const auto& write = parameters.writeValue;
      const bool wide = parameters.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
      if (!valid_word(write.address, wide, true, device)) return nullptr;
      return make_write(write.address, wide ? write.value64 : write.value, wide, write.flags);
    }
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER: return make_ref<MarkerOp>();
    default: return nullptr;
  }
}

CUresult make_batch(unsigned count, const CUstreamBatchMemOpParams* parameters, std::optional<int> device,
                    std::vector<Ref<Op>>& ops) {
  constexpr unsigned kMaxCount = 256;
  if (count == 0 || count > kMaxCount || parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    ops.push_back(make_batched(parameters[i], device));
    if (!ops.back()) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult enqueue_batch(CUstream handle, unsigned count, const CUstreamBatchMemOpParams* parameters,
                       unsigned flags) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (count == 0 && !stream.capturing()) return CUDA_SUCCESS;
    std::vector<Ref<Op>> ops;
    if (const CUresult result = make_batch(count, parameters, accessing_device(stream.context()), ops);
        result != CUDA_SUCCESS)
      return result;
    if (stream.capturing()) ops = {make_ref<BatchOp>(std::move(ops))};  // captured as one node
    for (const Ref<Op>& op : ops) {
      if (const CUresult result = stream.context().enqueue(stream, op); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult gpupool::softgpu::api::make_batch_op(const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch, Ref<Op>* op) {
  if (batch == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Ref<Op>> ops;
  const CUresult result = make_batch(batch->count, batch->paramArray, std::nullopt, ops);
  if (result == CUDA_SUCCESS) *op = make_ref<BatchOp>(std::move(ops));
  return result;
}

CUDA_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                            unsigned int flags) {
  return enqueue_word(stream, address, value, false, flags, false);
}
CUDA_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                            unsigned int flags) {
  return enqueue_word(stream, address, value, true, flags, false);
}
CUDA_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                             unsigned int flags) {
  return enqueue_word(stream, address, value, false, flags, true);
}
CUDA_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                             unsigned int flags) {
  return enqueue_word(stream, address, value, true, flags, true);
}
CUDA_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                           CUstreamBatchMemOpParams* parameters, unsigned int flags) {
  return enqueue_batch(stream, count, parameters, flags);
}
CUDA_EXPORT CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                                CUflushGPUDirectRDMAWritesScope) {
  return call_in_context([&](Context&) {
    return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ? CUDA_SUCCESS
                                                                        : CUDA_ERROR_INVALID_VALUE;
  });
}
