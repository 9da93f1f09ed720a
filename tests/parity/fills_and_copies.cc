// Fills of every width and shape, and copies in streams and between contexts. Prints checksums of the
// resulting memory.
#include <cstring>
#include <vector>

#include "tests/parity/show.h"

namespace parity {
namespace {

constexpr size_t kPitch = 64, kRows = 8, kFilledBytes = kPitch * kRows;

struct Memory {
  Memory() {
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuMemAlloc(&device, kFilledBytes);
    clear();
  }
  ~Memory() {
    cuMemFree(device);
    cuStreamDestroy(stream);
  }
  void clear() {
    cuMemsetD8(device, 0, kFilledBytes);
    cuCtxSynchronize();
  }
  // Waits for all work, returns a checksum of the memory, and clears it.
  unsigned take() {
    std::vector<unsigned char> bytes(kFilledBytes);
    cuCtxSynchronize();
    cuMemcpyDtoH(bytes.data(), device, kFilledBytes);
    clear();
    unsigned sum = 0;
    for (const unsigned char byte : bytes) sum = sum * 31 + byte;
    return sum;
  }
  CUdeviceptr device = 0;
  CUstream stream = nullptr;
};

#define SHOW_EFFECT(call)                            \
  do {                                               \
    SHOW(call);                                      \
    std::printf("%s: %08x\n", #call, memory.take()); \
  } while (false)

void fills() {
  Memory memory;
  SHOW_EFFECT(cuMemsetD8(memory.device + 1, 0xab, 3));
  SHOW_EFFECT(cuMemsetD16(memory.device + 2, 0xabcd, 5));
  SHOW_EFFECT(cuMemsetD32(memory.device + 4, 0x01020304, 7));
  SHOW_EFFECT(cuMemsetD8Async(memory.device + 1, 0xab, 3, memory.stream));
  SHOW_EFFECT(cuMemsetD16Async(memory.device + 2, 0xabcd, 5, memory.stream));
  SHOW_EFFECT(cuMemsetD32Async(memory.device + 4, 0x01020304, 7, memory.stream));
  SHOW_EFFECT(cuMemsetD2D8(memory.device, kPitch, 0x11, 3, 4));
  SHOW_EFFECT(cuMemsetD2D16(memory.device, kPitch, 0x1122, 3, 4));
  SHOW_EFFECT(cuMemsetD2D32(memory.device, kPitch, 0x11223344, 3, 4));
  SHOW_EFFECT(cuMemsetD2D8Async(memory.device + 8, kPitch, 0x11, 3, 4, memory.stream));
  SHOW_EFFECT(cuMemsetD2D16Async(memory.device + 8, kPitch, 0x1122, 3, 4, memory.stream));
  SHOW_EFFECT(cuMemsetD2D32Async(memory.device + 8, kPitch, 0x11223344, 3, 4, memory.stream));
  SHOW_EFFECT(cuMemsetD16(memory.device + 1, 1, 1));
  SHOW_EFFECT(cuMemsetD16Async(memory.device + 1, 1, 1, memory.stream));
  SHOW_EFFECT(cuMemsetD2D16Async(memory.device, 4, 1, 3, 2, memory.stream));
  SHOW_EFFECT(cuMemsetD2D32Async(memory.device, kPitch, 1, 17, 9, memory.stream));
  SHOW_EFFECT(cuMemsetD2D8Async(memory.device, kPitch, 1, 3, 4, wild<CUstream>()));
  SHOW_EFFECT(cuMemsetD32Async(kWildAddress, 1, 1, memory.stream));
}

void copies() {
  Memory memory;
  unsigned char numbers[64], back[64] = {};
  for (unsigned i = 0; i < 64; ++i) numbers[i] = static_cast<unsigned char>(i * 5 + 1);
  void* pinned = nullptr;
  cuMemHostAlloc(&pinned, 64, 0);
  std::memcpy(pinned, numbers, 64);
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  const CUdeviceptr from = reinterpret_cast<CUdeviceptr>(numbers);
  SHOW_EFFECT(cuMemcpyHtoDAsync(memory.device + 3, numbers, 64, memory.stream));
  SHOW_EFFECT(cuMemcpyHtoDAsync(memory.device + 5, pinned, 64, memory.stream));
  SHOW_EFFECT(cuMemcpy(memory.device + 7, from, 64));
  SHOW_EFFECT(cuMemcpyAsync(memory.device + 9, from, 64, memory.stream));
  SHOW_EFFECT(cuMemcpyAsync(memory.device + 9, from, 64, wild<CUstream>()));
  cuMemcpyHtoD(memory.device, numbers, 64);
  SHOW_EFFECT(cuMemcpyPeerAsync(memory.device + 128, context, memory.device, context, 64, memory.stream));
  cuMemcpyHtoD(memory.device, numbers, 64);
  SHOW_EFFECT(cuMemcpyPeer(memory.device + 128, context, memory.device, context, 64));
  cuMemcpyHtoD(memory.device, numbers, 64);
  SHOW(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(back), memory.device, 64, memory.stream));
  SHOW(cuStreamSynchronize(memory.stream));
  std::printf("came back: %d\n", std::memcmp(numbers, back, 64) == 0);
  cuMemFreeHost(pinned);
}

}  // namespace

void fills_and_copies() {
  fills();
  copies();
}

}  // namespace parity
