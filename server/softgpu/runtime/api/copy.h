// Checking and starting transfers; used by copies and memsets of all shapes.
#pragma once
#include "protocol/cuda/cuda_header.h"
#include "server/softgpu/runtime/stream.h"
#include "server/softgpu/runtime/transfer.h"

namespace gpupool::softgpu::api {

enum class Side { host, device, any };

// CUDA_ERROR_INVALID_VALUE unless each side's bytes are accessible there.
CUresult check_transfer(const Transfer& transfer, Side destination, Side source);

// From the driver's descriptor; checks all but the addresses.
CUresult describe_copy(const CUDA_MEMCPY3D* copy, Transfer* described, Side* destination_side,
                       Side* source_side);

CUresult transfer_async(Stream& stream, const Transfer& transfer);
// Returns when the transfer is done; the calling thread does it.
CUresult transfer_now(Stream& stream, const Transfer& transfer);

}  // namespace gpupool::softgpu::api
