#include "protocol/images/kernel_params.h"

#include <string>

#include "tests/protocol/images/images.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace cuda = gpupool::cuda;
using cuda::KernelParam;
using Params = std::vector<KernelParam>;

namespace {

const cuda::KernelLayout* find(const std::vector<cuda::KernelLayout>& kernels, std::string_view name) {
  for (const auto& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Params ptx_params(const std::string& list) {
  const std::string ptx = ".version 8.0\n.visible .entry k(" + list + ")\n{ ret; }\n";
  std::vector<cuda::KernelLayout> kernels;
  if (cuda::kernels_of_ptx(ptx, kernels) != CUDA_SUCCESS) return {{~0u, ~0u}};
  REQUIRE(kernels.size() == 1);
  return kernels[0].params;
}
const Params kRefused = {{~0u, ~0u}};

}  // namespace

namespace Catch {
template <>
struct StringMaker<KernelParam> {
  static std::string convert(const KernelParam& param) {
    return std::to_string(param.offset) + "+" + std::to_string(param.size);
  }
};
}  // namespace Catch

TEST_CASE("reads the parameter layouts of nvcc's kernels from cubin and PTX") {
  if (!images::have_compiled())
    return gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
  for (const char* name : {"kernels.cubin", "kernels.ptx", "large.cubin", "large.ptx"}) {
    INFO(name);
    const images::Buffer code = images::compiled(name);
    if (code.empty()) {
      CHECK(std::string(name).starts_with("large"));  // nvcc before 12.1 does not support large parameters
      gpupool::testing::report_skip("nvcc is too old for " + std::string(name));
      continue;
    }
    const bool text = std::string(name).ends_with(".ptx");
    std::vector<cuda::KernelLayout> kernels;
    REQUIRE(cuda::kernels_of_code(text ? cuda::CodeKind::ptx : cuda::CodeKind::elf, code, kernels) ==
            CUDA_SUCCESS);
    REQUIRE(find(kernels, "vector_add") != nullptr);
    CHECK(find(kernels, "vector_add")->params == Params{{0, 8}, {8, 8}, {16, 8}, {24, 4}});
    REQUIRE(find(kernels, "mixed") != nullptr);
    CHECK(find(kernels, "mixed")->params == Params{{0, 1}, {2, 2}, {8, 32}, {48, 16}, {64, 8}, {72, 32}});
    CHECK(find(kernels, "mixed")->bytes() == 104);
    REQUIRE(find(kernels, "no_params") != nullptr);
    CHECK(find(kernels, "no_params")->params.empty());
    CHECK(find(kernels, "no_params")->bytes() == 0);
    if (find(kernels, "large") != nullptr)
      CHECK(find(kernels, "large")->params == Params{{0, 4}, {4, 20000}, {20004, 1}});
  }
}

TEST_CASE("PTX parameter lists") {
  CHECK(ptx_params("") == Params{});
  CHECK(ptx_params(".param .u64 a") == Params{{0, 8}});
  CHECK(ptx_params(".param .u8 a, .param .f64 b, .param .b16 c") == Params{{0, 1}, {8, 8}, {16, 2}});
  CHECK(ptx_params(".param .align 16 .b8 a[20], .param .u32 b") == Params{{0, 20}, {20, 4}});
  CHECK(ptx_params(".param .u8 a, .param .align 1 .b8 b[3], .param .b32 c[2]") ==
        Params{{0, 1}, {1, 3}, {4, 8}});
  CHECK(ptx_params(".param .u64 .ptr .global .align 4 a, .param .u8 b") == Params{{0, 8}, {8, 1}});
  CHECK(ptx_params(".param .texref t, .param .u32 /* , */ b // )\n") == Params{{0, 8}, {8, 4}});
  CHECK(ptx_params(".param .b8 a[0x10], .param .b8 b[2][3]") == Params{{0, 16}, {16, 6}});
}

TEST_CASE("broken PTX parameter lists are refused") {
  for (const char* list :
       {".param", ".param .u32", ".param a", ".param .u32 a b", ".param .u32 a,", ".reg .u32 a", "a",
        ".param .b8 a[]", ".param .b8 a[99999999999]", ".param .b8 a[20000][20000]",
        ".param .align 3 .b8 a[4]", ".param .align 0 .b8 a[4]", ".param .b8 a[-1]", ".param .v4 .f32 a",
        ".param .u32 a[4", ".param .b8 a[20000], .param .b8 b[20000]"}) {
    INFO(list);
    CHECK(ptx_params(list) == kRefused);
  }
  std::vector<cuda::KernelLayout> kernels;
  CHECK(cuda::kernels_of_ptx(".entry", kernels) == CUDA_ERROR_INVALID_PTX);
  CHECK(cuda::kernels_of_ptx(".entry k(.param .u32 a", kernels) == CUDA_ERROR_INVALID_PTX);
}

TEST_CASE("only entries are kernels wherever the word appears") {
  const std::string ptx =
      "// .entry a(.param .u32 x)\n"
      "/* .entry b() */\n"
      ".file 1 \"c.entry d()\"\n"
      ".func helper(.param .u32 x) { ld.param.u32 %r1, [x]; ret; }\n"
      ".visible .entry first(.param .u32 x) { ret; }\n"
      ".weak .entry second { ret; }\n"
      ".visible .entry third(.param .u64 p, .param .u32 n) .maxntid 128, 1, 1 { ret; }\n";
  std::vector<cuda::KernelLayout> kernels;
  REQUIRE(cuda::kernels_of_ptx(ptx, kernels) == CUDA_SUCCESS);
  REQUIRE(kernels.size() == 3);
  CHECK(kernels[0].name == "first");
  CHECK(kernels[0].params == Params{{0, 4}});
  CHECK(kernels[1].name == "second");
  CHECK(kernels[1].params.empty());
  CHECK(kernels[2].name == "third");
  CHECK(kernels[2].params == Params{{0, 8}, {8, 4}});
}
