#include <cstring>
#include <set>
#include <string>

#include "tests/server/softgpu/runtime/fixture.h"

TEST_CASE("devices answer the queries of cudart's initialisation") {
  REQUIRE_OK(cuInit(0));
  int version = 0;
  REQUIRE_OK(cuDriverGetVersion(&version));
  CHECK(version >= CUDA_VERSION);
  int count = 0;
  REQUIRE_OK(cuDeviceGetCount(&count));
  CHECK(count == 2);
  for (int attribute = 1; attribute <= 143; ++attribute) {
    int value = -7;
    INFO("attribute " << attribute);
    CHECK(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), 0) == CUDA_SUCCESS);
    CHECK(value != -7);
  }
  int value = 0;
  CHECK(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(0), 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2) == CUDA_ERROR_INVALID_DEVICE);
  REQUIRE_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1));
  CHECK(value == 32);
  REQUIRE_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  CHECK(value == 3);
  size_t bytes = 0;
  REQUIRE_OK(cuDeviceTotalMem_v2(&bytes, 0));
  CHECK(bytes == 256u << 20);
}

TEST_CASE("each device has its own UUID and a PCI id that finds it") {
  REQUIRE_OK(cuInit(0));
  std::set<std::string> uuids;
  for (CUdevice device = 0; device < 2; ++device) {
    CUuuid uuid;
    REQUIRE_OK(cuDeviceGetUuid(&uuid, device));
    uuids.insert(std::string(uuid.bytes, sizeof uuid.bytes));
    char text[32];
    REQUIRE_OK(cuDeviceGetPCIBusId(text, sizeof text, device));
    CUdevice found = -1;
    REQUIRE_OK(cuDeviceGetByPCIBusId(&found, text));
    CHECK(found == device);
    CHECK(cuDeviceGetPCIBusId(text, 5, device) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(uuids.size() == 2);
}

TEST_CASE("error names and texts") {
  const char* text = nullptr;
  REQUIRE_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CHECK(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
  REQUIRE_OK(cuGetErrorString(CUDA_SUCCESS, &text));
  CHECK(std::string(text) == "no error");
  CHECK(cuGetErrorName(static_cast<CUresult>(12345), &text) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("cuGetProcAddress finds versions and per-thread twins, and stubs answer NOT_SUPPORTED") {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status;
  REQUIRE_OK(cuGetProcAddress_v2("cuMemAlloc", &address, 12000, 0, &status));
  CHECK(address == reinterpret_cast<void*>(&cuMemAlloc_v2));
  REQUIRE_OK(cuGetProcAddress_v2("cuStreamQuery", &address, 12000, 2, &status));
  CHECK(address == reinterpret_cast<void*>(&cuStreamQuery_ptsz));
  REQUIRE_OK(cuGetProcAddress_v2("cuNoSuchThing", &address, 12000, 0, &status));
  CHECK(address == nullptr);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(cuGraphicsUnregisterResource(nullptr) == CUDA_ERROR_NOT_SUPPORTED);
}
