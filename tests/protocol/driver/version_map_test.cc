#include "protocol/driver/version_map.h"

#include <fstream>
#include <string>

#include "protocol/driver/driver_version.h"
#include "tests/support/catch.h"

namespace cuda = gpupool::cuda;
using cuda::SymbolStatus;

namespace {

std::string resolve(std::string_view name, int version, uint64_t flags) {
  const auto match = cuda::find_symbol(name, version, flags);
  if (match.status == SymbolStatus::not_found) return "NOT_FOUND";
  if (match.status == SymbolStatus::version_not_sufficient) return "VERSION_NOT_SUFFICIENT";
  return cuda::symbol_name(match.symbol);
}

}  // namespace

TEST_CASE("every request that cudart 13.0 makes at start-up gets the symbol it got before") {
  std::ifstream requests(TEST_DATA "/getproc_requests.txt");
  std::string name, version, flags, symbol;
  int count = 0;
  while (requests >> name >> version >> flags >> symbol) {
    INFO(name << ' ' << version << ' ' << flags);
    CHECK(resolve(name, std::stoi(version.substr(1)), std::stoull(flags.substr(1))) == symbol);
    ++count;
  }
  CHECK(count == 439);
}

TEST_CASE("the version picks the revision") {
  CHECK(resolve("cuMemAlloc", 2000, 0) == "cuMemAlloc");
  CHECK(resolve("cuMemAlloc", 3019, 0) == "cuMemAlloc");
  CHECK(resolve("cuMemAlloc", 3020, 0) == "cuMemAlloc_v2");
  CHECK(resolve("cuMemAlloc", 13000, 0) == "cuMemAlloc_v2");
  CHECK(resolve("cuCtxCreate", 11030, 0) == "cuCtxCreate_v2");
  CHECK(resolve("cuCtxCreate", 11040, 0) == "cuCtxCreate_v3");
  CHECK(resolve("cuCtxCreate", 12040, 0) == "cuCtxCreate_v3");
  CHECK(resolve("cuCtxCreate", 13000, 0) == "cuCtxCreate_v4");
  CHECK(resolve("cuTexRefSetAddress2D", 4010, 0) == "cuTexRefSetAddress2D_v3");
}

TEST_CASE("the per-thread flag picks the per-thread variant if there is one") {
  CHECK(resolve("cuStreamSynchronize", 7000, 2) == "cuStreamSynchronize_ptsz");
  CHECK(resolve("cuStreamSynchronize", 7000, 1) == "cuStreamSynchronize");
  CHECK(resolve("cuStreamSynchronize", 7000, 0) == "cuStreamSynchronize");
  // Per-thread variants exist since 7.0.
  CHECK(resolve("cuStreamSynchronize", 6050, 2) == "cuStreamSynchronize");
  CHECK(resolve("cuMemcpyHtoD", 3020, 2) == "cuMemcpyHtoD_v2");
  CHECK(resolve("cuMemcpyHtoD", 13000, 2) == "cuMemcpyHtoD_v2_ptds");
  CHECK(resolve("cuMemAlloc", 13000, 2) == "cuMemAlloc_v2");  // has no per-thread variant
  CHECK(resolve("cuMemPrefetchAsync", 12010, 2) == "cuMemPrefetchAsync_ptsz");
  CHECK(resolve("cuMemPrefetchAsync", 12020, 2) == "cuMemPrefetchAsync_v2_ptsz");
}

TEST_CASE("a missing symbol is reported with the reason") {
  CHECK(resolve("", 0, 0) == "NOT_FOUND");
  CHECK(resolve("cuMemAllo", 13000, 0) == "NOT_FOUND");
  CHECK(resolve("cuMemAllocc", 13000, 0) == "NOT_FOUND");
  CHECK(resolve("zzz", 13000, 0) == "NOT_FOUND");
  CHECK(resolve("cuMemAlloc_v2", 13000, 0) == "NOT_FOUND");  // only base names can be requested
  CHECK(resolve("cuMemcpy_ptds", 13000, 2) == "NOT_FOUND");
  CHECK(resolve("cuMemcpyBatchAsync", 12070, 2) == "VERSION_NOT_SUFFICIENT");
  CHECK(resolve("cuInit", 1999, 0) == "VERSION_NOT_SUFFICIENT");
}

TEST_CASE("symbol names and numbers map to each other") {
  for (uint32_t symbol = 0; symbol < cuda::symbol_count(); ++symbol) {
    CHECK(cuda::symbol_by_name(cuda::symbol_name(symbol)) == symbol);
  }
  CHECK(cuda::symbol_by_name("cuNothing") == cuda::symbol_count());
  CHECK(std::string(cuda::symbol_name(cuda::symbol_count())) == "");
  CHECK(cuda::newest_symbol_version() >= 13000);
}

TEST_CASE("functions added after CUDA 13.0 do not replace each other's versions") {
  CHECK(resolve("cuGraphAddNode", 13030, 0) == "cuGraphAddNode_v2");
  CHECK(resolve("cuGraphAddNode", 13040, 0) == "cuGraphAddNode_v3");
  CHECK(resolve("cuLaunchHostFunc", 13000, 2) == "cuLaunchHostFunc_ptsz");
  CHECK(resolve("cuLaunchHostFunc", 13010, 2) == "cuLaunchHostFunc_v2_ptsz");
  CHECK(resolve("cuFuncGetParamCount", 13010, 0) == "VERSION_NOT_SUFFICIENT");
  CHECK(resolve("cuFuncGetParamCount", 13020, 0) == "cuFuncGetParamCount");
  CHECK(resolve("cuGraphicsGLRegisterBuffer", 3000, 0) == "cuGraphicsGLRegisterBuffer");
}

TEST_CASE("parses a driver version setting") {
  CHECK(cuda::parse_driver_version("13.4") == 13040);
  CHECK(cuda::parse_driver_version("11.7") == 11070);
  CHECK(cuda::parse_driver_version("13.5") == cuda::newest_symbol_version());
  for (const char* wrong : {"", "13", "13.", ".4", "13.40", "13.4x", "13.4.1", " 13.4", "-13.4", "11.6",
                            "13.6", "99.9", "4294967309.4"}) {
    INFO(wrong);
    CHECK(cuda::parse_driver_version(wrong) == std::nullopt);
  }
  CHECK(std::string(cuda::driver_version_wanted()) == "a CUDA version from 11.7 to 13.5");
}
