// Fuzzes the estimate of an image's device memory: any bytes must give a result, in time proportional to
// their number.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "protocol/images/device_bytes.h"

namespace cuda = gpupool::cuda;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cuda::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  for (const auto kind : {cuda::CodeKind::ptx, cuda::CodeKind::elf, cuda::CodeKind::other}) {
    if (cuda::device_bytes(kind, bytes) != cuda::device_bytes(kind, bytes)) std::abort();
  }
  if (cuda::device_bytes(cuda::CodeKind::other, bytes) != 0) std::abort();
  cuda::Image image;
  if (cuda::parse_image({bytes, {}}, image) == CUDA_SUCCESS)
    static_cast<void>(cuda::device_bytes(image, 9, 0));
  return 0;
}
