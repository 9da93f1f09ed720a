// Checking and starting transfers; used by copies and memsets of all shapes.
#pragma once
#include <optional>

#include "protocol/cuda/cuda_header.h"
#include "server/softgpu/runtime/stream.h"
#include "server/softgpu/runtime/transfer.h"

namespace gpupool::softgpu::api {

enum class Side { host, device, any };

// The device of a context that a transfer runs in, for check_transfer(); nothing where the access of copies is not kept by device.
std::optional<int> accessing_device(const Context& context);
// CUDA_ERROR_INVALID_VALUE unless each side's bytes are accessible there, and mappings by the devices that access them.
CUresult check_transfer(const Transfer& transfer, Side destination, Side source, std::optional<int> destination_device,
                        std::optional<int> source_device);
inline CUresult check_transfer(const Transfer& transfer, Side destination, Side source, std::optional<int> device) {
  return check_transfer(transfer, destination, source, device, device);
}

// From the driver's descriptor; checks all but the addresses.
CUresult describe_copy(const CUDA_MEMCPY3D* copy, Transfer* described, Side* destination_side,
                       Side* source_side);

CUresult transfer_async(Stream& stream, const Transfer& transfer);
// Returns when the transfer is done; the calling thread does it.
CUresult transfer_now(Stream& stream, const Transfer& transfer);
// A synchronous function's transfer. Between the memory of two devices it begins when all work of both is done (CUDA Programming Guide,
// Peer-to-Peer Memory Copy).
CUresult transfer_synchronously(Stream& stream, const Transfer& transfer);
// From the memory of one device's context to that of another's, which are not mappings of cuMemMap.
bool is_between_devices(const Transfer& transfer);

}  // namespace gpupool::softgpu::api
