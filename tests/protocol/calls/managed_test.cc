#include "protocol/calls/managed.h"

#include "tests/support/catch.h"

using namespace gpupool::cuda;

namespace {

constexpr uint64_t kBase = 0x2000'0000'0000;
constexpr uint64_t kMiB = 1 << 20;
constexpr ManagedLocation kFirst{ManagedLocation::kDevice, 0}, kSecond{ManagedLocation::kDevice, 1},
    kHost{ManagedLocation::kHost, 0};

int get(const ManagedAdvice& advice, CUmem_range_attribute attribute, uint64_t address, uint64_t bytes) {
  int value = 99;
  CHECK(advice.get(&value, sizeof value, attribute, address, bytes) == CUDA_SUCCESS);
  return value;
}

}  // namespace

TEST_CASE("advice applies to the range that it was given for") {
  ManagedAdvice advice;
  CHECK(advice.advise(kBase, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, {}, 2) == CUDA_SUCCESS);
  CHECK(advice.advise(kBase + 4096, 4096, CU_MEM_ADVISE_UNSET_READ_MOSTLY, {}, 2) == CUDA_SUCCESS);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, kBase, 4096) == 1);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, kBase, 4097) == 0);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, kBase + 8192, kMiB - 8192) == 1);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, kBase + kMiB, 1) == 0);
  advice.forget(kBase, kMiB);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, kBase, 4096) == 0);
}

TEST_CASE("pages with different locations have no common location") {
  ManagedAdvice advice;
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, kBase, kMiB) == CU_DEVICE_INVALID);
  CHECK(advice.advise(kBase, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kSecond, 2) == CUDA_SUCCESS);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, kBase, kMiB) == 1);
  CHECK(advice.advise(kBase + kMiB / 2, 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost, 2) == CUDA_SUCCESS);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, kBase, kMiB) == CU_DEVICE_INVALID);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, kBase + kMiB / 2, 4096) == CU_DEVICE_CPU);
  advice.prefetched(kBase, kMiB, kFirst);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, kBase, kMiB) == 0);
  CHECK(get(advice, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, kBase, kMiB + 4096) == CU_DEVICE_INVALID);
  for (const int id_attribute : {6, 8})  // ids of the preferred location and of the last prefetch
    CHECK(get(advice, static_cast<CUmem_range_attribute>(id_attribute), kBase, kMiB + 4096) ==
          CU_DEVICE_INVALID);
}

TEST_CASE("reports the devices that have access to the whole range") {
  ManagedAdvice advice;
  CHECK(advice.advise(kBase, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, kFirst, 2) == CUDA_SUCCESS);
  CHECK(advice.advise(kBase, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, kHost, 2) == CUDA_SUCCESS);
  CHECK(advice.advise(kBase, 4096, CU_MEM_ADVISE_UNSET_ACCESSED_BY, kHost, 2) == CUDA_SUCCESS);
  int devices[3] = {};
  CHECK(advice.get(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, kBase, kMiB) == CUDA_SUCCESS);
  CHECK((devices[0] == 0 && devices[1] == CU_DEVICE_INVALID && devices[2] == CU_DEVICE_INVALID));
  CHECK(advice.get(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, kBase + 4096, 4096) ==
        CUDA_SUCCESS);
  CHECK((devices[0] == 0 && devices[1] == CU_DEVICE_CPU));
}

TEST_CASE("rejects invalid advice and locations") {
  ManagedAdvice advice;
  CHECK(advice.advise(kBase, 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, {ManagedLocation::kDevice, 2}, 2) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(advice.advise(kBase, 1, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, {99, 0}, 2) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(advice.advise(kBase, 1, CU_MEM_ADVISE_SET_ACCESSED_BY, {ManagedLocation::kHostNode, 0}, 2) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(advice.advise(kBase, 1, static_cast<CUmem_advise>(7), kFirst, 2) == CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  CHECK(advice.get(&value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, kBase, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(advice.get(&value, 4, static_cast<CUmem_range_attribute>(9), kBase, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(advice.get(&value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, kBase, UINT64_MAX) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(check_location({ManagedLocation::kHostNode, -1}, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check_location({99, 0}, 1) == CUDA_ERROR_INVALID_VALUE);
  const size_t firsts[] = {0, 2, 2};
  CHECK(check_batch_locations(firsts, firsts, 2, 3) == CUDA_SUCCESS);
  CHECK(check_batch_locations(firsts, firsts, 3, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check_batch_locations(firsts + 1, firsts, 1, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check_batch_locations(firsts, firsts, 2, 2) == CUDA_ERROR_INVALID_VALUE);
}
