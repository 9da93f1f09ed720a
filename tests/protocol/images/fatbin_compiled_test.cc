// Tests images that the installed nvcc writes: every compression, -rdc, architecture-specific code; and
// truncated and damaged copies of them.
#include <cuda.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "protocol/images/fatbin.h"
#include "protocol/images/kernel_params.h"
#include "tests/protocol/images/images.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace cuda = gpupool::cuda;
using namespace images;
using cuda::CodeKind;
using cuda::Packing;

namespace {

struct Expected {
  int entries;
  const char* what;  // kind, architecture and compression of each
};

const std::map<std::string, Expected> kExpected = {
    {"default.fatbin", {2, ""}},
    {"several.fatbin", {3, "elf 75, elf 86, ptx 80, "}},
    {"cubin_only.fatbin", {1, "elf 80, "}},
    {"ptx_only.fatbin", {1, "ptx 80, "}},
    {"relocatable.fatbin", {2, ""}},
    {"options.fatbin", {2, ""}},
    {"debug.fatbin", {2, ""}},
    {"plain.fatbin", {2, ""}},
    {"lz4.fatbin", {2, ""}},
    {"zstd.fatbin", {2, ""}},
    {"exact.fatbin", {3, "elf 90a, ptx 90a, elf 90, "}},
    {"family.fatbin", {2, "elf 100f, ptx 100f, "}},
    {"lto.fatbin", {2, ""}},
    {"kernels.cubin", {1, "elf 80, "}},
    {"kernels.ptx", {1, "ptx 80, "}},
};

std::string describe(const std::vector<cuda::ImageEntry>& entries) {
  std::string all;
  for (const auto& entry : entries) {
    all += (entry.kind == CodeKind::elf   ? "elf "
            : entry.kind == CodeKind::ptx ? "ptx "
                                          : "other ") +
           std::to_string(entry.arch) + (entry.exact_arch ? "a" : "") + (entry.family_arch ? "f" : "") + ", ";
  }
  return all;
}

std::vector<std::string> sorted_words(std::string list) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = list.find(", ")) != std::string::npos; list.erase(0, at + 2))
    words.push_back(list.substr(0, at));
  std::sort(words.begin(), words.end());
  return words;
}

// Runs all code that parses untrusted images; true if all of it succeeds.
bool read_all(cuda::ByteSpan bytes) {
  std::vector<cuda::ImageEntry> entries;
  bool good = cuda::parse_image(bytes, entries) == CUDA_SUCCESS;
  for (const auto& entry : entries) {
    cuda::Bytes code;
    if (entry.kind == CodeKind::other) continue;
    if (cuda::unpack_entry(entry, code, 1 << 20) != CUDA_SUCCESS) {
      good = false;
      continue;
    }
    std::vector<cuda::KernelLayout> kernels;
    good = cuda::kernels_of_code(entry.kind, code.view(), kernels) == CUDA_SUCCESS && good;
    size_t bytes_used = 0;
    for (const auto& kernel : kernels) bytes_used += kernel.bytes() + kernel.name.size();
    good = bytes_used < (size_t{1} << 40) && good;
  }
  return good;
}

}  // namespace

TEST_CASE("reads the entries of nvcc's images") {
  if (!have_compiled())
    return gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
  for (const auto& [name, expected] : kExpected) {
    Buffer bytes = compiled(name);
    INFO(name);
    if (bytes.empty()) {
      CHECK(NVCC_MAJOR < 13);  // CUDA 13's nvcc compiles all of them
      gpupool::testing::report_skip("nvcc is too old for " + std::string(name));
      continue;
    }
    bytes.push_back(std::byte{0});
    const bool text = name.ends_with(".ptx");
    CHECK(cuda::image_extent(bytes.data()) == bytes.size() - (text ? 0 : 1));
    std::vector<cuda::ImageEntry> entries;
    REQUIRE(cuda::parse_image(bytes, entries) == CUDA_SUCCESS);
    CHECK(static_cast<int>(entries.size()) == expected.entries);
    if (expected.what[0] != '\0') CHECK(sorted_words(describe(entries)) == sorted_words(expected.what));
    for (const auto& entry : entries) {
      if (entry.kind == CodeKind::other) continue;
      cuda::Bytes code;
      REQUIRE(cuda::unpack_entry(entry, code) == CUDA_SUCCESS);
      if (entry.kind == CodeKind::ptx) {
        CHECK(code.text().find(".visible .entry vector_add(") != std::string_view::npos);
        CHECK(code.text().find("no_params") != std::string_view::npos);
      } else {
        std::vector<cuda::ImageEntry> bare;
        REQUIRE(cuda::parse_image(code.view(), bare) == CUDA_SUCCESS);
        REQUIRE(bare.size() == 1);
        CHECK(bare[0].arch == entry.arch);
        CHECK(bare[0].payload.size() == code.view().size());  // the size according to its headers
      }
    }
  }
}

TEST_CASE("reads nvcc's flags and options") {
  if (!have_compiled())
    return gpupool::testing::report_skip("built without nvcc, so there are no compiled images");
  const auto ptx_of = [](const std::string& name, const Buffer& bytes) {
    std::vector<cuda::ImageEntry> entries;
    REQUIRE(cuda::parse_image(bytes, entries) == CUDA_SUCCESS);
    for (const auto& entry : entries) {
      if (entry.kind == CodeKind::ptx) return entry;
    }
    FAIL("no PTX in " << name);
    return cuda::ImageEntry{};
  };
  const Buffer relocatable = compiled("relocatable.fatbin");
  CHECK(ptx_of("relocatable", relocatable).options.find("--compile-only") != std::string_view::npos);
  const Buffer options = compiled("options.fatbin");
  CHECK(ptx_of("options", options).options.find("-maxrregcount=32") != std::string_view::npos);
  CHECK(ptx_of("options", options).name.find("kernels.cu") != std::string_view::npos);
  const Buffer debug = compiled("debug.fatbin");
  if (debug.empty()) return gpupool::testing::report_skip("nvcc is too old for debug.fatbin");
  CHECK(ptx_of("debug", debug).debug);
  CHECK(ptx_of("debug", debug).options.find("-g") != std::string_view::npos);
  const Buffer plain = compiled("plain.fatbin");
  CHECK(ptx_of("plain", plain).packing == Packing::plain);
  CHECK_FALSE(ptx_of("plain", plain).debug);
  if (const Buffer lz4 = compiled("lz4.fatbin"); !lz4.empty())
    CHECK(ptx_of("lz4", lz4).packing == Packing::lz4);
  if (const Buffer zstd = compiled("zstd.fatbin"); !zstd.empty())
    CHECK(ptx_of("zstd", zstd).packing == Packing::zstd);
}

TEST_CASE("rejects an image truncated at any byte and reads nothing beyond it") {
  std::vector<Buffer> whole;
  for (const char* name : {"default.fatbin", "lz4.fatbin", "zstd.fatbin", "kernels.cubin"}) {
    if (Buffer bytes = compiled(name); !bytes.empty()) whole.push_back(std::move(bytes));
  }
  whole.push_back(
      container({{format::kKindPtx, 80, 0x11 | format::kFlagZstd, std::string(".version 7.0\n"), "-g"}}));
  for (const Buffer& bytes : whole) {
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      const Buffer part(bytes.begin(),
                        bytes.begin() + static_cast<ptrdiff_t>(cut));  // exact size: ASan sees overreads
      if (read_all(part)) FAIL("cut at " << cut << " of " << bytes.size());
    }
    CHECK(read_all(bytes));
  }
}

TEST_CASE("rejects a bundle truncated at any byte") {
  const Buffer one = container({{format::kKindPtx, 75, 0x11, ".version 7.0\n", ""}});
  cuda::Bytes wire;
  REQUIRE(cuda::bundle({one, {one, one}}, wire) == CUDA_SUCCESS);
  for (size_t cut = 0; cut < wire.view().size(); ++cut) {
    const Buffer part(wire.view().begin(), wire.view().begin() + static_cast<ptrdiff_t>(cut));
    cuda::Bundle bundle;
    CHECK(bundle.parse(part) == CUDA_ERROR_INVALID_IMAGE);
  }
  const Buffer text = to_buffer(".version 7.0\n");  // without NUL: a driver would read beyond the end
  REQUIRE(cuda::bundle({text, {}}, wire) == CUDA_SUCCESS);
  cuda::Bundle bundle;
  CHECK(bundle.parse(wire.view()) == CUDA_ERROR_INVALID_IMAGE);
}

TEST_CASE("survives a changed byte anywhere in an image") {
  std::mt19937 random(1);
  std::vector<Buffer> whole;
  for (const char* name : {"default.fatbin", "zstd.fatbin", "kernels.cubin", "large.cubin", "kernels.ptx"}) {
    if (Buffer bytes = compiled(name); !bytes.empty()) whole.push_back(std::move(bytes));
  }
  whole.push_back(container(
      {{format::kKindPtx, 80, 0x11 | format::kFlagLz4, std::string(".entry k(.param .u32 a)\n"), "-g"}}));
  for (const Buffer& bytes : whole) {
    for (int round = 0; round < 3000; ++round) {
      Buffer changed = bytes;
      for (int i = 0; i < 1 + round % 3; ++i)
        changed[random() % changed.size()] = static_cast<std::byte>(random());
      read_all(changed);
    }
  }
}
