// Tests a library made by gpupool_cuda_driver(): it exports all symbols and binds each to itself.
#include <dlfcn.h>

#include <string>

#include "protocol/driver/version_map.h"
#include "tests/protocol/driver/elf_exports.h"
#include "tests/support/catch.h"

namespace cuda = gpupool::cuda;

namespace {

using GetProcAddressV2 = int (*)(const char*, void**, int, uint64_t, int*);
using GetProcAddressV1 = int (*)(const char*, void**, int, uint64_t);

struct TinyDriver {
  TinyDriver() {
    intruder = dlopen(INTRUDER, RTLD_NOW | RTLD_GLOBAL);
    library = dlopen(TINY_DRIVER, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(intruder != nullptr);
    REQUIRE(library != nullptr);
    get_v2 = reinterpret_cast<GetProcAddressV2>(dlsym(library, "cuGetProcAddress_v2"));
    get_v1 = reinterpret_cast<GetProcAddressV1>(dlsym(library, "cuGetProcAddress"));
  }
  ~TinyDriver() {
    dlclose(library);
    dlclose(intruder);
  }
  void* intruder = nullptr;
  void* library = nullptr;
  GetProcAddressV2 get_v2 = nullptr;
  GetProcAddressV1 get_v1 = nullptr;
};

}  // namespace

TEST_CASE("the library exports exactly the driver's symbols") {
  std::set<std::string> expected;
  for (uint32_t symbol = 0; symbol < cuda::symbol_count(); ++symbol)
    expected.insert(cuda::symbol_name(symbol));
  CHECK(elf_exports(TINY_DRIVER) == expected);
}

TEST_CASE("cuGetProcAddress answers with the library's own symbols") {
  TinyDriver driver;
  // The intruder's symbols precede the library's in the dynamic linker's order.
  for (uint32_t symbol = 0; symbol < cuda::symbol_count(); ++symbol) {
    const std::string name = cuda::symbol_name(symbol);
    if (name.find('_') != std::string::npos) continue;  // selected by version, below
    void* address = nullptr;
    int status = -1;
    REQUIRE(driver.get_v2(name.c_str(), &address, 13000, 0, &status) == 0);
    const auto match = cuda::find_symbol(name, 13000, 0);
    if (match.status == cuda::SymbolStatus::version_not_sufficient) {  // the driver's version is 13.0
      INFO(name);
      CHECK(status == 1);
      CHECK(address == nullptr);
      continue;
    }
    REQUIRE(status == 0);
    CHECK(address == dlsym(driver.library, cuda::symbol_name(match.symbol)));
  }
  void* address = nullptr;
  REQUIRE(driver.get_v2("cuInit", &address, 13000, 0, nullptr) == 0);
  CHECK(reinterpret_cast<int (*)(unsigned)>(address)(0) == 4242);
}

TEST_CASE("a stub reports its own number and CUDA_ERROR_NOT_SUPPORTED") {
  TinyDriver driver;
  auto last = reinterpret_cast<int (*)(int*)>(dlsym(driver.library, "cuDriverGetVersion"));
  for (const char* name :
       {"cuMemAlloc_v2", "cuArray3DCreate", "cuProfilerStop", "cuStreamGetCaptureInfo_v3_ptsz"}) {
    CHECK(reinterpret_cast<int (*)(...)>(dlsym(driver.library, name))(1, 2, 3) == 801);
    int symbol = -1;
    last(&symbol);
    CHECK(cuda::symbol_name(static_cast<uint32_t>(symbol)) == std::string(name));
  }
}

TEST_CASE("cuGetProcAddress keeps CUDA's rules for wrong questions") {
  TinyDriver driver;
  void* address = &driver;
  int status = -1;
  CHECK(driver.get_v2("cuNothing", &address, 13000, 0, &status) == 0);
  CHECK(status == 1);
  CHECK(address == nullptr);
  CHECK(driver.get_v2("cuMemcpyBatchAsync", &address, 12000, 0, &status) == 0);
  CHECK(status == 2);
  CHECK(address == nullptr);
  CHECK(driver.get_v2("", &address, 0, 0, nullptr) == 0);
  CHECK(driver.get_v1("cuNothing", &address, 13000, 0) == 500);
  CHECK(driver.get_v1("cuMemAlloc", &address, 13000, 0) == 0);
  CHECK(address == dlsym(driver.library, "cuMemAlloc_v2"));
  CHECK(driver.get_v2(nullptr, &address, 13000, 0, &status) == 1);
  CHECK(driver.get_v2("cuInit", nullptr, 13000, 0, &status) == 1);
  CHECK(driver.get_v2("cuInit", &address, 13000, 3, &status) == 1);
  CHECK(driver.get_v2("cuInit", &address, 13010, 0, &status) == 1);  // newer than the driver
}
