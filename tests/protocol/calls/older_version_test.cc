// Tests the common body of older versions of functions (CUDA_OLDER of calls.def) with made-up newer
// functions.
#include "protocol/calls/older_version.h"

#include "tests/support/catch.h"

namespace {

using gpupool::cuda::OlderVersion;

constexpr CUdeviceptr kWide = 0x1'0000'0000;

CUdeviceptr address_to_return = 0;
size_t size_to_return = 0;
CUdeviceptr freed = 0;
CUresult result_to_return = CUDA_SUCCESS;
CUstream stream_seen = nullptr;
bool null_seen = false;

CUresult query(CUdeviceptr* address, size_t* size) {
  null_seen = address == nullptr;
  if (result_to_return != CUDA_SUCCESS) return result_to_return;
  if (address) *address = address_to_return;
  if (size) *size = size_to_return;
  return CUDA_SUCCESS;
}
CUresult release(CUdeviceptr address) {
  freed = address;
  return CUDA_SUCCESS;
}
using Query = CUresult (*)(CUdeviceptr_v1*, unsigned*);

CUresult describe(CUDA_ARRAY3D_DESCRIPTOR* shape, const CUDA_ARRAY3D_DESCRIPTOR* given) {
  null_seen = given == nullptr;
  if (shape && given) *shape = *given;
  return CUDA_SUCCESS;
}

CUresult with_more(CUstream stream, size_t bytes, unsigned flags, void** values) {
  stream_seen = stream;
  return bytes == 7 && flags == 3 && values == nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

TEST_CASE("an older version returns what fits its types") {
  result_to_return = CUDA_SUCCESS;
  using Older = OlderVersion<Query, &query, nullptr>;
  CUdeviceptr_v1 address = 1;
  unsigned size = 2;
  address_to_return = 0xffff'ffff;
  size_to_return = 0x1'0000'0001;
  CHECK(Older::call(&address, &size) == CUDA_SUCCESS);
  CHECK(address == 0xffff'ffff);
  CHECK(size == 0xffff'ffff);  // the largest

  address_to_return = kWide;
  address = 1, size = 2;
  CHECK(Older::call(&address, &size) == CUDA_ERROR_INVALID_VALUE);
  CHECK(address == 1);
  CHECK(size == 2);

  CHECK(Older::call(nullptr, &size) == CUDA_SUCCESS);
  CHECK(null_seen);

  result_to_return = CUDA_ERROR_NOT_FOUND;
  size = 2;
  CHECK(Older::call(&address, &size) == CUDA_ERROR_NOT_FOUND);
  CHECK(size == 2);
}

TEST_CASE("an older version frees new memory whose address it cannot return") {
  result_to_return = CUDA_SUCCESS;
  using Older = OlderVersion<Query, &query, &release>;
  CUdeviceptr_v1 address = 1;
  unsigned size = 2;
  address_to_return = kWide, freed = 0;
  CHECK(Older::call(&address, &size) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(freed == kWide);
  CHECK(address == 1);

  address_to_return = 0x1000, freed = 0;
  CHECK(Older::call(&address, &size) == CUDA_SUCCESS);
  CHECK(freed == 0);
  CHECK(address == 0x1000);
}

TEST_CASE("an older version converts structs in both directions") {
  using Older = OlderVersion<CUresult (*)(CUDA_ARRAY3D_DESCRIPTOR_v1*, const CUDA_ARRAY3D_DESCRIPTOR_v1*),
                             &describe, nullptr>;
  CUDA_ARRAY3D_DESCRIPTOR_v1 given{};
  given.Width = 3, given.Height = 4, given.Depth = 5;
  given.Format = CU_AD_FORMAT_FLOAT, given.NumChannels = 2, given.Flags = 1;
  CUDA_ARRAY3D_DESCRIPTOR_v1 returned{};
  CHECK(Older::call(&returned, &given) == CUDA_SUCCESS);
  CHECK(returned.Width == 3);
  CHECK(returned.Height == 4);
  CHECK(returned.Depth == 5);
  CHECK(returned.Format == CU_AD_FORMAT_FLOAT);
  CHECK(returned.NumChannels == 2);
  CHECK(returned.Flags == 1);
  CHECK(Older::call(&returned, nullptr) == CUDA_SUCCESS);
  CHECK(null_seen);
}

TEST_CASE("an older version passes further arguments and, with _ptsz, the calling thread's stream") {
  using Older = OlderVersion<CUresult (*)(CUstream, unsigned), &with_more, nullptr, 3, nullptr>;
  CHECK(Older::call(nullptr, 7) == CUDA_SUCCESS);
  CHECK(stream_seen == nullptr);
  CHECK(Older::call_per_thread(nullptr, 7) == CUDA_SUCCESS);
  CHECK(stream_seen == CU_STREAM_PER_THREAD);
}
