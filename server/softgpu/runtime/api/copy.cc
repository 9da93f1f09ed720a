// Linear copies, in all directions.
//
// Host and device share one address space, so the functions only differ in which of the two addresses must be
// the device's.
#include "server/softgpu/runtime/api/copy.h"

#include <cstring>
#include <memory>
#include <vector>

#include "server/softgpu/memory/address_space.h"
#include "server/softgpu/runtime/api/call.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace gpupool::softgpu::api {

namespace {

uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

bool is_pageable(uint64_t address) {
  return !in_range(address, 1) && !runtime().memory().find(address);
}

}  // namespace

std::optional<int> accessing_device(const Context& context) {
  return runtime().config().rules.enforces(Rule::copy_access) ? std::optional(context.device().index())
                                                              : std::nullopt;
}

CUresult check_transfer(const Transfer& transfer, Side destination, Side source,
                        std::optional<int> destination_device, std::optional<int> source_device) {
  const MemoryMap& memory = runtime().memory();
  const auto valid = [&](uint64_t address, uint64_t extent, Side side, bool write,
                         std::optional<int> device) {
    if (address + extent < address) return false;
    // Addresses in softgpu's reserved range are valid only where something is mapped, also for the host.
    if (side == Side::host && !in_range(address, 1)) return address != 0;
    if (memory.accessible(address, extent, write, device)) return true;
    // With unified addressing, unknown memory outside of the range is the host's.
    return side == Side::any && !in_range(address, 1) && address != 0 && !memory.overlaps(address, 1);
  };
  if (transfer.bytes() == 0) return CUDA_SUCCESS;
  if (!valid(transfer.destination, transfer.destination_extent(), destination, true, destination_device))
    return CUDA_ERROR_INVALID_VALUE;
  if (!transfer.is_fill() &&
      !valid(transfer.source, transfer.source_extent(), source, false, source_device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

namespace {

// Contexts of the two devices other than the stream's, if the transfer is between devices. Mapped memory has
// no context; that of its device is the primary one.
std::vector<Ref<Context>> other_contexts(const Stream& stream, const Transfer& transfer) {
  if (transfer.is_fill()) return {};
  const auto to = runtime().memory().find(transfer.destination),
             from = runtime().memory().find(transfer.source);
  if (!to || !from || to->is_host() || from->is_host() || to->device == from->device) return {};
  std::vector<Ref<Context>> others;
  for (const auto& range : {to, from}) {
    Device* const device = runtime().device(range->device);
    const Ref<Context> owner = range->context != 0
                                   ? find<Context>(reinterpret_cast<CUcontext>(range->context))
                               : device ? Ref<Context>::share(&device->primary())
                                        : nullptr;
    if (owner && owner->active() && owner.get() != &stream.context()) others.push_back(owner);
  }
  return others;
}

// A copy between two devices in a legacy default stream follows all earlier work of both devices, and their
// later work follows it (CUDA C++ Programming Guide, "Peer-to-Peer Memory Copy").
CUresult transfer_between_devices(Stream& stream, const Transfer& transfer,
                                  const std::vector<Ref<Context>>& others) {
  const auto copy = make_ref<TransferOp>(transfer);
  for (const Ref<Context>& other : others) {
    const auto earlier_work = make_ref<MarkerOp>();
    if (const CUresult result = other->enqueue_behind_all(earlier_work, false); result != CUDA_SUCCESS)
      return result;
    copy->after(*earlier_work);
  }
  if (const CUresult result = stream.context().enqueue(stream, copy); result != CUDA_SUCCESS) return result;
  for (const Ref<Context>& other : others) {
    const auto copied = make_ref<MarkerOp>();
    copied->after(*copy);
    if (const CUresult result = other->enqueue_behind_all(copied, true); result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

// As in CUDA, the program may reuse pageable memory when the call returns: a source of up to 64 KiB is
// staged, otherwise the call waits until the copy is done.
CUresult transfer_async(Stream& stream, const Transfer& transfer) {
  if (transfer.bytes() == 0) return CUDA_SUCCESS;
  constexpr uint64_t kStagedBytes = 64 << 10;
  if (!stream.capturing()) {
    if (is_pageable(transfer.destination)) return transfer_now(stream, transfer);
    if (!transfer.is_fill() && is_pageable(transfer.source)) {
      const uint64_t bytes = transfer.source_extent();
      if (bytes > kStagedBytes) return transfer_now(stream, transfer);
      const std::shared_ptr<std::byte[]> staged(new std::byte[bytes]);
      std::memcpy(staged.get(), reinterpret_cast<const void*>(transfer.source), bytes);
      Transfer from_staged = transfer;
      from_staged.source = address_of(staged.get());
      return stream.context().enqueue(stream, make_ref<TransferOp>(from_staged, staged));
    }
  }
  if (stream.legacy() && !stream.capturing()) {
    if (const auto others = other_contexts(stream, transfer); !others.empty())
      return transfer_between_devices(stream, transfer, others);
  }
  return stream.context().enqueue(stream, make_ref<TransferOp>(transfer));
}

CUresult transfer_now(Stream& stream, const Transfer& transfer) {
  if (transfer.bytes() == 0) return CUDA_SUCCESS;
  Context& context = stream.context();
  const Ref<CallerRunsOp> op = make_ref<CallerRunsOp>();
  if (const CUresult result = context.enqueue(stream, op); result != CUDA_SUCCESS) return result;
  op->wait_until_ready(context.spins());
  if (!context.failed()) {
    constexpr uint64_t kPieceBytes = 4 << 20;
    TransferCursor cursor;
    TransferStep step;
    do {
      step = cursor.advance(transfer, runtime().memory(), kPieceBytes);
    } while (step == TransferStep::more);
    if (step == TransferStep::bad_address) context.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  op->finish();
  context.charge_wakeup(context.spins());
  Context::write_device_output();
  return context.error();
}

bool is_between_devices(const Transfer& transfer) {
  if (transfer.is_fill()) return false;
  const auto to = runtime().memory().find(transfer.destination),
             from = runtime().memory().find(transfer.source);
  return to && from && !to->is_host() && !from->is_host() && to->context != 0 && from->context != 0 &&
         to->device != from->device;
}

CUresult transfer_synchronously(Stream& stream, const Transfer& transfer) {
  if (is_between_devices(transfer)) {
    for (const uint64_t address : {transfer.destination, transfer.source}) {
      const auto range = runtime().memory().find(address);
      const Ref<Context> owner = range ? find<Context>(reinterpret_cast<CUcontext>(range->context)) : nullptr;
      const CUresult result = owner ? owner->synchronize() : CUDA_SUCCESS;
      if (result != CUDA_SUCCESS) return result;
    }
  }
  return transfer_now(stream, transfer);
}

}  // namespace gpupool::softgpu::api

namespace {

CUresult copy_now(uint64_t destination, Side destination_side, uint64_t source, Side source_side,
                  uint64_t bytes) {
  return call_on_stream(nullptr, [&](Stream& stream) {
    const Transfer transfer = Transfer::copy(destination, source, bytes);
    const CUresult result =
        check_transfer(transfer, destination_side, source_side, accessing_device(stream.context()));
    return result != CUDA_SUCCESS ? result : transfer_synchronously(stream, transfer);
  });
}

CUresult copy_async(uint64_t destination, Side destination_side, uint64_t source, Side source_side,
                    uint64_t bytes, CUstream handle) {
  return call_on_stream(handle, [&](Stream& stream) {
    const Transfer transfer = Transfer::copy(destination, source, bytes);
    const CUresult result =
        check_transfer(transfer, destination_side, source_side, accessing_device(stream.context()));
    return result != CUDA_SUCCESS ? result : transfer_async(stream, transfer);
  });
}

// Checks each side against the device of its own context.
CUresult copy_between(Context& to, uint64_t destination, Context& from, uint64_t source, uint64_t bytes,
                      CUstream handle) {
  return call_on_stream(handle, [&](Stream& stream) {
    const Transfer transfer = Transfer::copy(destination, source, bytes);
    const CUresult result =
        check_transfer(transfer, Side::device, Side::device, accessing_device(to), accessing_device(from));
    return result != CUDA_SUCCESS ? result : transfer_async(stream, transfer);
  });
}

struct PeerContexts {
  PeerContexts(CUcontext destination, CUcontext source)
      : to(find<Context>(destination)), from(find<Context>(source)) {}
  CUresult check() const {
    if (!to || !from) return CUDA_ERROR_INVALID_CONTEXT;
    const CUresult result = to->check();
    return result != CUDA_SUCCESS ? result : from->check();
  }
  const Ref<Context> to, from;
};

}  // namespace

CUDA_EXPORT CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  return copy_now(destination, Side::any, source, Side::any, bytes);
}
CUDA_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void* source, size_t bytes) {
  return copy_now(destination, Side::device, address_of(source), Side::host, bytes);
}
CUDA_EXPORT CUresult cuMemcpyDtoH_v2(void* destination, CUdeviceptr source, size_t bytes) {
  return copy_now(address_of(destination), Side::host, source, Side::device, bytes);
}
CUDA_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  // A copy within one device is only ordered in the stream; the host does not wait.
  if (is_between_devices(Transfer::copy(destination, source, bytes)))
    return copy_now(destination, Side::device, source, Side::device, bytes);
  return copy_async(destination, Side::device, source, Side::device, bytes, nullptr);
}

CUDA_EXPORT CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                                   CUstream stream) {
  return copy_async(destination, Side::any, source, Side::any, bytes, stream);
}
CUDA_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void* source, size_t bytes,
                                          CUstream stream) {
  return copy_async(destination, Side::device, address_of(source), Side::host, bytes, stream);
}
CUDA_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* destination, CUdeviceptr source, size_t bytes,
                                          CUstream stream) {
  return copy_async(address_of(destination), Side::host, source, Side::device, bytes, stream);
}
CUDA_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                                          CUstream stream) {
  return copy_async(destination, Side::device, source, Side::device, bytes, stream);
}

// CUDA serialises this copy with all work of the three contexts, non-blocking streams included.
CUDA_EXPORT CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
                                  CUcontext source_context, size_t bytes) {
  return call_in_context([&](Context& current) {
    const PeerContexts peers(destination_context, source_context);
    CUresult result = peers.check();
    if (result == CUDA_SUCCESS) result = peers.to->synchronize();
    if (result == CUDA_SUCCESS) result = peers.from->synchronize();
    if (result == CUDA_SUCCESS) result = current.synchronize();
    if (result == CUDA_SUCCESS)
      result = copy_between(*peers.to, destination, *peers.from, source, bytes, nullptr);
    return result == CUDA_SUCCESS ? current.synchronize() : result;
  });
}
CUDA_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext destination_context,
                                       CUdeviceptr source, CUcontext source_context, size_t bytes,
                                       CUstream stream) {
  return call([&] {
    const PeerContexts peers(destination_context, source_context);
    const CUresult result = peers.check();
    return result != CUDA_SUCCESS ? result
                                  : copy_between(*peers.to, destination, *peers.from, source, bytes, stream);
  });
}
