// Two devices of one driver: attributes of the pair, copies between them, and peer access.
#include "tests/parity/show.h"

namespace parity {

void two_devices() {
  CUcontext contexts[2] = {};
  CUdeviceptr memory[2] = {};
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUstream stream = nullptr;
  int number = -1;
  unsigned seen[4] = {}, capabilities[2] = {};
  for (int device = 0; device < 2; ++device) {
    SHOW(cuDevicePrimaryCtxRetain(&contexts[device], device));
    SHOW(cuCtxSetCurrent(contexts[device]));
    SHOW(cuMemAlloc(&memory[device], 4096));
    SHOW(cuMemsetD32(memory[device], static_cast<unsigned>(device) + 5, 1024));
    SHOW(cuCtxSynchronize());
  }
  SHOW_VALUE(cuDeviceCanAccessPeer(&number, 0, 1), "%d", number);
  for (int attribute = 0; attribute < 7; ++attribute) {
    number = -1;
    const CUresult result =
        cuDeviceGetP2PAttribute(&number, static_cast<CUdevice_P2PAttribute>(attribute), 0, 1);
    std::printf("peer attribute %d -> %s %d\n", attribute, name_of(result), number);
  }
  SHOW_VALUE(cuDeviceGetP2PAttribute(&number, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1), "%d", number);
#if CUDA_VERSION >= 13000
  const CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
  SHOW_VALUE(cuDeviceGetP2PAtomicCapabilities(capabilities, operations, 2, 0, 1), "%x %x", capabilities[0],
             capabilities[1]);
#endif
  SHOW(cuCtxSetCurrent(contexts[0]));
  SHOW(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  SHOW(cuMemcpyPeerAsync(memory[0], contexts[0], memory[1], contexts[1], 8, stream));
  SHOW(cuStreamSynchronize(stream));
  SHOW_VALUE(cuMemcpyDtoH(seen, memory[0], sizeof seen), "%u %u %u", seen[0], seen[1], seen[2]);
  SHOW(cuMemcpyPeer(memory[0] + 8, contexts[0], memory[1], contexts[1], 4));
  SHOW_VALUE(cuMemcpyDtoH(seen, memory[0], sizeof seen), "%u %u %u %u", seen[0], seen[1], seen[2], seen[3]);
  SHOW(cuCtxDisablePeerAccess(contexts[1]));
  SHOW(cuCtxEnablePeerAccess(contexts[0], 0));
  SHOW(cuCtxEnablePeerAccess(contexts[1], 1));
  SHOW(cuCtxEnablePeerAccess(contexts[1], 0));
  SHOW(cuCtxEnablePeerAccess(contexts[1], 0));
  // A kernel of device 0 accesses memory of device 1.
  SHOW(cuModuleLoadData(&module, kernels_ptx));
  SHOW(cuModuleGetFunction(&add, module, "add"));
  unsigned value = 30, count = 2;
  void* parameters[] = {&memory[1], &value, &count};
  SHOW(launch(add, 1, 32, 0, stream, parameters));
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuCtxSetCurrent(contexts[1]));
  SHOW_VALUE(cuMemcpyDtoH(seen, memory[1], sizeof seen), "%u %u %u", seen[0], seen[1], seen[2]);
  SHOW(cuCtxSetCurrent(contexts[0]));
  SHOW(cuCtxDisablePeerAccess(contexts[1]));
  SHOW(cuCtxDisablePeerAccess(contexts[1]));
  for (int device = 0; device < 2; ++device) {
    SHOW(cuCtxSetCurrent(contexts[device]));
    SHOW(cuMemFree(memory[device]));
    SHOW(cuDevicePrimaryCtxRelease(device));
  }
}

}  // namespace parity
