// Peer access between devices. For devices of one server, the server answers. Kernels cannot access memory of
// another server; copies can (server_copy.h).
#include <algorithm>

#include "client/session/call.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

// *together: both devices belong to one server.
CUresult find(CUdevice first, CUdevice second, bool* together) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const Device* const one = find_device(first);
  const Device* const other = find_device(second);
  if (!one || !other) return CUDA_ERROR_INVALID_DEVICE;
  *together = one->session == other->session;
  return CUDA_SUCCESS;
}

// *apart: the peer context belongs to another server than the current one.
CUresult find(CUcontext given, bool* apart) {
  Session* session = nullptr;
  Context* context = nullptr;
  if (const CUresult result = require_context(&session, &context); result != CUDA_SUCCESS) return result;
  const Object* const peer = handles().find(Kind::context, cuda::handle_bits(given));
  *apart = peer && peer->session != session;
  return CUDA_SUCCESS;
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return guarded([&]() -> CUresult {
    bool together = false;
    if (const CUresult result = find(device, peer, &together); result != CUDA_SUCCESS) return result;
    if (together) return rows::cuDeviceCanAccessPeer::forward(can, device, peer);
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    *can = 0;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device,
                                             CUdevice peer) {
  return guarded([&]() -> CUresult {
    bool together = false;
    if (const CUresult result = find(device, peer, &together); result != CUDA_SUCCESS) return result;
    if (together) return rows::cuDeviceGetP2PAttribute::forward(value, attribute, device, peer);
    if (!value || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attribute > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *value = 0;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  return guarded([&]() -> CUresult {
    bool apart = false;
    if (const CUresult result = find(peer, &apart); result != CUDA_SUCCESS) return result;
    if (!apart) return rows::cuCtxEnablePeerAccess::forward(peer, flags);
    return flags == 0 ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return guarded([&]() -> CUresult {
    bool apart = false;
    if (const CUresult result = find(peer, &apart); result != CUDA_SUCCESS) return result;
    return apart ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : rows::cuCtxDisablePeerAccess::forward(peer);
  });
}

#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities,
                                                      const CUatomicOperation* operations, unsigned int count,
                                                      CUdevice device, CUdevice peer) {
  return guarded([&]() -> CUresult {
    bool together = false;
    if (const CUresult result = find(device, peer, &together); result != CUDA_SUCCESS) return result;
    if (device == peer) return CUDA_ERROR_INVALID_DEVICE;
    if (!capabilities || !operations || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (together)
      return rows::cuDeviceGetP2PAtomicCapabilities::forward(capabilities, operations, count, device, peer);
    std::fill_n(capabilities, count, 0u);
    return CUDA_SUCCESS;
  });
}
#endif
