// The names that protocol/images/variables.h finds in an image are those that the loaded module has.
#include "protocol/images/variables.h"

#include <cctype>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/server/softgpu/runtime/fixture.h"
#include "tests/support/skip.h"

namespace cuda = gpupool::cuda;

namespace {

const char kVariables[] = R"(
.version 8.0
.target sm_75
.address_size 64
.global .texref picture;
.extern .global .u32 elsewhere;
.extern .shared .align 16 .b8 dynamic[];
.shared .u32 together;
.visible .global .align 4 .u32 plain = 3;
.global .align 4 .b8 table[140], next[2] = {1, 2};
.weak .const .align 8 .f64 factors[2] = {0d3FF0000000000000, 2.5};
.common .global .v4 .f32 tentative;
.global .attribute(.managed) .align 4 .b8 managed[40];
.global .align 8 .u64 self[2] = {generic(plain), 4};

.visible .entry kernel(.param .u64 .ptr .global .align 4 out) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  .global .u32 calls = 1;
  .local .align 4 .b8 scratch[8];
  .shared .u32 own;
start:
  ld.param.u64 %rd1, [out];
  ld.global.u32 %r1, [plain];
  {
    .const .u32 step = 4;
    ld.const.u32 %r2, [step];
  }
  atom.global.add.u32 %r1, [calls], %r2;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

// Words of the text, which include all names in it.
std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> words;
  std::string word;
  for (const char c : text + ' ') {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%') {
      word += c;
    } else if (!word.empty()) {
      words.insert(std::move(word));
      word.clear();
    }
  }
  return words;
}

struct VariablesFixture : ContextFixture {
  VariablesFixture() {
    REQUIRE_OK(cuDeviceGetAttribute(&target.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    REQUIRE_OK(cuDeviceGetAttribute(&target.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  }

  // `texts`: PTX of the image. Of all words in it, exactly the names that are found are variables.
  void check(const void* image, const std::string& texts) {
    cuda::ImageSpans spans;
    cuda::Bytes bundle;
    REQUIRE_OK(cuda::locate_image(image, spans));
    REQUIRE_OK(cuda::bundle(spans, bundle));
    cuda::ModuleVariables found;
    REQUIRE_OK(cuda::variables_of_bundle(bundle.view(), target, found));
    CUmodule module = nullptr;
    REQUIRE_OK(cuModuleLoadData(&module, image));
    std::set<std::string> names;
    for (const auto& [name, variable] : found.by_name) names.insert(name);
    std::set<std::string> resolved;
    for (const std::string& word : words_of(texts)) {
      CUdeviceptr address = 0;
      size_t size = 0;
      if (cuModuleGetGlobal_v2(&address, &size, module, word.c_str()) != CUDA_SUCCESS) continue;
      resolved.insert(word);
      int managed = -1;
      REQUIRE_OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
      INFO(word);
      CHECK(found.by_name[word].managed == (managed == 1));
    }
    CHECK(names == resolved);
    CHECK(names.size() > 5);
    REQUIRE_OK(cuModuleUnload(module));
  }

  cuda::CodeTarget target{0, 0, true};
};

#ifdef COMPILED_IMAGES
std::string compiled(const std::string& name) {
  std::ifstream in(std::string(COMPILED_IMAGES) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
#endif

}  // namespace

TEST_CASE_METHOD(VariablesFixture, "the variables found in PTX are those that the module has") {
  check(kVariables, kVariables);
}

TEST_CASE_METHOD(VariablesFixture, "the variables found in nvcc's images are those that the module has") {
#ifdef COMPILED_IMAGES
  const std::string ptx = compiled("variables.ptx"), fat = compiled("variables.fatbin"),
                    heap = compiled("heap.ptx");
  REQUIRE_FALSE(fat.empty());
  check(ptx.c_str(), ptx);
  check(fat.c_str(), ptx);
  check(heap.c_str(), heap);

  CUlinkState link = nullptr;
  REQUIRE_OK(cuLinkCreate_v2(0, nullptr, nullptr, &link));
  std::string both;
  for (const char* name : {"first.ptx", "second.ptx"}) {
    std::string text = compiled(name);
    REQUIRE_OK(
        cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, text.data(), text.size() + 1, name, 0, nullptr, nullptr));
    both += text + '\n';
  }
  void* cubin = nullptr;
  size_t size = 0;
  REQUIRE_OK(cuLinkComplete(link, &cubin, &size));
  check(cubin, both);
  REQUIRE_OK(cuLinkDestroy(link));
#else
  gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
#endif
}

extern "C" void softgpu_wish_variable(const char* name, unsigned long long address);

TEST_CASE_METHOD(ContextFixture, "wishes for places of variables are kept up to a limit") {
  const auto load = [](const char* variable) {
    const std::string image = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .global .b8 " +
                              std::string(variable) + "[64];\n";
    CUmodule module = nullptr;
    REQUIRE_OK(cuModuleLoadData(&module, image.c_str()));
    CUdeviceptr address = 0;
    size_t size = 0;
    REQUIRE_OK(cuModuleGetGlobal_v2(&address, &size, module, variable));
    REQUIRE_OK(cuModuleUnload(module));
    return address;
  };
  constexpr CUdeviceptr kFar = 32 << 20;
  const CUdeviceptr usual = load("wished");
  softgpu_wish_variable("wished", usual + kFar);
  CHECK(load("wished") == usual + kFar);
  CHECK(load("wished") != usual + kFar);
  const std::string long_name(4000, 'n');
  for (int count = 0; count < 5000; ++count) softgpu_wish_variable(long_name.c_str(), usual);
  softgpu_wish_variable((long_name + long_name).c_str(), usual);
  for (int count = 0; count < 100; ++count) softgpu_wish_variable("small", usual);
  softgpu_wish_variable("wished", usual + kFar);
  CHECK(load("wished") != usual + kFar);
}
