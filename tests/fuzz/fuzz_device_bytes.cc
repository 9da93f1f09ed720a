// Fuzzes the estimate of an image's device memory: any bytes must give a result, in time proportional to
// their number.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "protocol/images/device_bytes.h"

namespace cuda = gpupool::cuda;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cuda::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  const uint64_t of_ptx = cuda::device_bytes(cuda::CodeKind::ptx, bytes);
  if (size % 8 == 0 && cuda::device_bytes(cuda::CodeKind::ptx, bytes) != of_ptx) std::abort();
  static_cast<void>(cuda::device_bytes(cuda::CodeKind::elf, bytes));
  if (cuda::device_bytes(cuda::CodeKind::other, bytes) != 0) std::abort();
  cuda::Image image;
  if (cuda::parse_image({bytes, {}}, image) == CUDA_SUCCESS)
    static_cast<void>(cuda::device_bytes(image, 9, 0));
  return 0;
}
