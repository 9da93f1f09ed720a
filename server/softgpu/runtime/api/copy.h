// Checks and starts transfers, for copies and memsets of all shapes, graph nodes and stream memory
// operations. Any thread.
#pragma once
#include <optional>

#include "protocol/driver/cuda_header.h"
#include "server/softgpu/runtime/stream.h"
#include "server/softgpu/runtime/transfer.h"

namespace gpupool::softgpu::api {

enum class Side { host, device, any };

// Returns the device whose access check_transfer() requires for a context's transfers; nullopt if rule
// copy_access is off.
std::optional<int> accessing_device(const Context& context);
// Returns CUDA_ERROR_INVALID_VALUE unless all bytes of each side are accessible. A mapping must be accessible
// to the given device, or to any location if none is given.
CUresult check_transfer(const Transfer& transfer, Side destination, Side source,
                        std::optional<int> destination_device, std::optional<int> source_device);
inline CUresult check_transfer(const Transfer& transfer, Side destination, Side source,
                               std::optional<int> device) {
  return check_transfer(transfer, destination, source, device, device);
}

// Converts the driver's descriptor to a transfer. Checks everything but the addresses.
CUresult describe_copy(const CUDA_MEMCPY3D* copy, Transfer* described, Side* destination_side,
                       Side* source_side);

// Enqueues the transfer. May wait for it if memory is pageable.
CUresult transfer_async(Stream& stream, const Transfer& transfer);
// Waits until the stream is ready and carries out the transfer on the calling thread.
CUresult transfer_now(Stream& stream, const Transfer& transfer);
// Carries out the transfer of a synchronous function. Between the memory of two devices it first waits for
// all work of both (CUDA Programming Guide, Peer-to-Peer Memory Copy).
CUresult transfer_synchronously(Stream& stream, const Transfer& transfer);
// True for a copy between memory of contexts on different devices. Mappings of cuMemMap belong to no context.
bool is_between_devices(const Transfer& transfer);

}  // namespace gpupool::softgpu::api
