#include "protocol/images/device_bytes.h"

#include <string>

#include "protocol/images/linked_cubin.h"
#include "tests/protocol/images/images.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace cuda = gpupool::cuda;

namespace {

uint64_t ptx_bytes(const std::string& text) {
  return cuda::device_bytes(cuda::CodeKind::ptx, std::as_bytes(std::span(text)));
}

}  // namespace

TEST_CASE("counts device memory that PTX declares") {
  const std::string head = ".version 8.0\n.target sm_80\n.address_size 64\n";
  CHECK(ptx_bytes(head) == 0);
  CHECK(ptx_bytes(head + ".global .align 4 .b8 big[4000];") == 4000);
  CHECK(ptx_bytes(head + ".visible .global .align 16 .f64 a[3][5];\n.const .u32 c;") == 3 * 5 * 8 + 4);
  CHECK(ptx_bytes(head + ".global .v4 .f32 v[2];") == 32);
  CHECK(ptx_bytes(head + ".global .u16 hex[0x10], octal[010], one;") == 2 * (16 + 8 + 1));
  CHECK(ptx_bytes(head + ".global .attribute(.managed) .align 4 .b8 m[12] = {1, 2, 3};") == 12);
  CHECK(ptx_bytes(head + ".global .u32 open[] = {1, 2, 3};.global .u32 next;") == 16);
  CHECK(ptx_bytes(head + ".global .b8 huge[0xffffffffffffffff][2];") == UINT64_MAX);
  // Not counted: external variables, on-chip memory, and a kernel's own parameters.
  CHECK(ptx_bytes(head + ".extern .global .b8 theirs[100];\n.global .b8 own[7];") == 7);
  CHECK(ptx_bytes(head + ".extern .func (.param .b32 r) f (.param .b64 p);\n.global .b8 own[7];") == 7);
  CHECK(ptx_bytes(head + ".shared .b8 s[100];\n.entry k(.param .u64 .ptr .global .align 4 p);") == 0);
  // Variables are found inside bodies, but not in comments.
  const std::string body = "{ add.u32 a, b, c; .global .b8 inner[9]; ret; ";
  CHECK(ptx_bytes(head + ".entry k() " + body + "}") == 9 + body.size());
  CHECK(ptx_bytes(head + "// .global .b8 no[9];\n/* .global .b8 no[9]; */") == 0);
  CHECK(ptx_bytes(head + ".global .b8 cut[9") == 0);
  CHECK(ptx_bytes("}}}))) .global .b8 x[3];") == 3);
}

TEST_CASE("counts the text of PTX functions as size of their code") {
  const std::string head = ".version 8.0\n.target sm_80\n.address_size 64\n";
  const std::string body = "{ .local .b8 l[64]; { ld.global.u32 %r1, [%rd1]; } ret; ";
  CHECK(ptx_bytes(head + ".visible .entry k(.param .u64 .ptr .global .align 4 p) " + body + "}") ==
        body.size());
  CHECK(ptx_bytes(head + ".entry k() .pragma \"nounroll\"; " + body + "}\n.func f() " + body + "}") ==
        2 * body.size());
  CHECK(ptx_bytes(head + ".func f();\n.section .debug_str { .b8 1, 2, 3 }\n.entry k() " + body + "}") ==
        body.size());
  CHECK(ptx_bytes(head + ".global .u32 v[2] = {1, 2};\n.entry k() " + body + "}") == 8 + body.size());
}

TEST_CASE("recognises code that launches kernels by the device runtime's functions") {
  const auto use_of = [](const std::string& text) {
    cuda::ImageSpans spans;
    spans.image = std::as_bytes(std::span(text.c_str(), text.size() + 1));
    cuda::Image image;
    REQUIRE(cuda::parse_image(spans, image) == CUDA_SUCCESS);
    return cuda::device_use(image, 9, 0);
  };
  const std::string head = ".version 8.0\n.target sm_80\n.address_size 64\n";
  CHECK_FALSE(use_of(head + ".entry k() { ret; }").launches_kernels);
  CHECK(use_of(head + ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 p, .param .b64 s);")
            .launches_kernels);
}

TEST_CASE("reads nothing outside a cubin for its size") {
  std::string noise(200, '\x7f');
  CHECK(cuda::device_bytes(cuda::CodeKind::elf, std::as_bytes(std::span(noise))) == 0);
  CHECK(cuda::device_bytes(cuda::CodeKind::elf, {}) == 0);
  CHECK(cuda::device_bytes(cuda::CodeKind::other, std::as_bytes(std::span(noise))) == 0);
}

TEST_CASE("counts a cubin's sections and survives truncated or damaged ones") {
  if (!images::have_compiled())
    return gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
  const images::Buffer cubin = images::compiled("kernels.cubin");
  const uint64_t whole = cuda::device_bytes(cuda::CodeKind::elf, cubin);
  CHECK(whole > 100);
  CHECK(whole < cubin.size() + (1u << 20));
  for (size_t size = 0; size < cubin.size(); size += 7) {
    cuda::device_bytes(cuda::CodeKind::elf, cuda::ByteSpan(cubin).first(size));
  }
  std::vector<cuda::ImageEntry> entries;
  REQUIRE(cuda::parse_image(cubin, entries) == CUDA_SUCCESS);
  cuda::Image image{entries, {}};
  const int major = static_cast<int>(entries[0].arch / 10), minor = static_cast<int>(entries[0].arch % 10);
  CHECK(cuda::device_bytes(image, major, minor) == whole);
  CHECK(cuda::device_bytes(image, 1, 0) == 0);
}

TEST_CASE("counts variables of code linked by softgpu and survives truncation") {
  const std::vector<std::string> texts{".version 7.0\n.target sm_70\n.global .u32 a[10];\n",
                                       ".version 7.0\n.target sm_70\n.const .u64 b;\n"};
  const std::string cubin = cuda::make_linked_cubin(texts, 86);
  const auto bytes = std::as_bytes(std::span(cubin));
  CHECK(cuda::texts_of_linked_cubin(bytes) == std::vector<std::string_view>(texts.begin(), texts.end()));
  CHECK(cuda::image_extent(cubin.data()) == cubin.size());
  cuda::ImageSpans spans;
  spans.image = bytes;
  cuda::Image image;
  REQUIRE(cuda::parse_image(spans, image) == CUDA_SUCCESS);
  CHECK(cuda::device_bytes(image, 8, 6) == 48);
  CHECK(cuda::device_bytes(image, 9, 0) == 0);  // not for that device
  for (size_t size = 0; size < cubin.size(); ++size) {
    // Its own allocation, so that a sanitizer detects overreads.
    const std::string part = cubin.substr(0, size);
    CHECK(cuda::texts_of_linked_cubin(std::as_bytes(std::span(part))).empty());
  }
  for (size_t at = 0; at < cubin.size(); ++at) {
    std::string wrong = cubin;
    wrong[at] = static_cast<char>(~wrong[at]);
    (void)cuda::texts_of_linked_cubin(std::as_bytes(std::span(wrong)));
  }
}
