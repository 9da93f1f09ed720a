#include "protocol/images/fatbin.h"

#include <string>

#include "tests/protocol/images/images.h"
#include "tests/support/catch.h"

namespace cuda = gpupool::cuda;
using namespace images;
using cuda::CodeKind;
using cuda::Packing;

namespace {

const std::string kPtx =
    "//\n.version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n";

std::vector<cuda::ImageEntry> parsed(const Buffer& bytes) {
  std::vector<cuda::ImageEntry> entries;
  REQUIRE(cuda::parse_image(bytes, entries) == CUDA_SUCCESS);
  return entries;
}

std::vector<cuda::ImageEntry> parsed(Buffer&&) = delete;  // deleted: entries point into the buffer

std::string text_of(const cuda::ImageEntry& entry) {
  cuda::Bytes bytes;
  REQUIRE(cuda::unpack_entry(entry, bytes) == CUDA_SUCCESS);
  return std::string(bytes.text());
}

std::string name_of(const cuda::ImageEntry& entry) {
  return (entry.kind == CodeKind::elf   ? "sm_"
          : entry.kind == CodeKind::ptx ? "ptx "
                                        : "other ") +
         std::to_string(entry.arch) + (entry.exact_arch ? "a" : "") + (entry.family_arch ? "f" : "");
}

// Returns the entry that would be loaded, as "sm_86" or "ptx 90a"; "-" if none fits.
std::string choice(const std::vector<cuda::ImageEntry>& entries, int major, int minor,
                   bool ptx_only = false) {
  const cuda::ImageEntry* entry = cuda::select_entry(entries, {major, minor, ptx_only});
  return entry == nullptr ? "-" : name_of(*entry);
}

}  // namespace

TEST_CASE("reads a container's entries with every compression") {
  const std::string large = kPtx + std::string(100000, '\n');
  const Buffer bytes =
      container({{format::kKindPtx, 75, 0x11, kPtx, ""},
                 {format::kKindPtx, 80, 0x11 | format::kFlagLz4, large, "-O1  -g"},
                 {format::kKindPtx, 90, 0x13 | format::kFlagZstd | format::kFlagExactArch, large, ""},
                 {8, 80, 0x11, "something else", ""}});
  const auto entries = parsed(bytes);
  REQUIRE(entries.size() == 4);
  CHECK(entries[0].packing == Packing::plain);
  CHECK(text_of(entries[0]) == kPtx);
  CHECK(entries[1].packing == Packing::lz4);
  CHECK(entries[1].options == "-O1  -g");
  CHECK(text_of(entries[1]) == large);
  CHECK(entries[2].packing == Packing::zstd);
  CHECK(entries[2].exact_arch);
  CHECK(entries[2].debug);
  CHECK(text_of(entries[2]) == large);
  CHECK(entries[3].kind == CodeKind::other);
  CHECK(cuda::image_extent(bytes.data()) == bytes.size());
}

namespace {

// Returns the architectures kept for devices of these compute capabilities, as choice() names them.
std::string kept(const Buffer& image, const std::vector<cuda::CodeTarget>& targets) {
  cuda::ImageSpans spans{image, {}};
  cuda::Bytes bytes;
  REQUIRE(cuda::keep_runnable(targets, spans, bytes) == CUDA_SUCCESS);
  CHECK(cuda::image_extent(spans.image.data()) == spans.image.size());
  std::vector<cuda::ImageEntry> entries;
  REQUIRE(cuda::parse_image(spans.image, entries) == CUDA_SUCCESS);
  std::string names;
  for (const cuda::ImageEntry& entry : entries) names += (names.empty() ? "" : ", ") + name_of(entry);
  return names;
}

}  // namespace

TEST_CASE("sends only entries that a device can run") {
  const auto elf = [](uint32_t arch, uint64_t flags = 0) {
    return Part{format::kKindElf, arch, 0x11 | flags, "x", ""};
  };
  const auto ptx = [](uint32_t arch, uint64_t flags = 0) {
    return Part{format::kKindPtx, arch, 0x11 | flags, kPtx, "-O1"};
  };
  const Buffer image = container({elf(75),
                                  elf(80),
                                  elf(86),
                                  elf(90),
                                  elf(90, format::kFlagExactArch),
                                  elf(100, format::kFlagFamilyArch),
                                  elf(103, format::kFlagExactArch),
                                  ptx(75, format::kFlagZstd),
                                  ptx(90, format::kFlagExactArch),
                                  ptx(120),
                                  {8, 80, 0x11, "other", ""}});
  CHECK(kept(image, {{8, 0}}) == "sm_80, ptx 75, other 80");
  CHECK(kept(image, {{8, 9}}) == "sm_80, sm_86, ptx 75, other 80");
  CHECK(kept(image, {{9, 0}}) == "sm_90, sm_90a, ptx 75, ptx 90a, other 80");
  CHECK(kept(image, {{10, 0}}) == "sm_100f, ptx 75, other 80");
  CHECK(kept(image, {{10, 3}}) == "sm_100f, sm_103a, ptx 75, other 80");
  CHECK(kept(image, {{12, 1}}) == "ptx 75, ptx 120, other 80");
  CHECK(kept(image, {{8, 0}, {9, 0}}) == "sm_80, sm_90, sm_90a, ptx 75, ptx 90a, other 80");
  const std::string all = kept(image, {});
  CHECK(all.starts_with("sm_75, sm_80, "));
  // Everything is kept, so that the driver itself reports why it has nothing to run.
  CHECK(kept(image, {{7, 0}}) == all);
  CHECK(kept(image, {{7, 0}, {9, 0}}) == all);
}

TEST_CASE("a kept entry is unchanged") {
  const Buffer bytes =
      container({{format::kKindPtx, 120, 0x11, kPtx, ""},
                 {format::kKindPtx, 80, 0x11 | format::kFlagZstd, kPtx, "-maxrregcount=32"}});
  cuda::ImageSpans spans{bytes, {}};
  cuda::Bytes kept;
  REQUIRE(cuda::keep_runnable({{8, 0}}, spans, kept) == CUDA_SUCCESS);
  CHECK(spans.image.size() < bytes.size());
  std::vector<cuda::ImageEntry> again;
  REQUIRE(cuda::parse_image(spans.image, again) == CUDA_SUCCESS);
  REQUIRE(again.size() == 1);
  CHECK(again[0].arch == 80);
  CHECK(again[0].options == "-maxrregcount=32");
  CHECK(text_of(again[0]) == kPtx);
}

TEST_CASE("images that are not plain containers are sent unchanged") {
  const Buffer text = to_buffer(kPtx + '\0'), image = container({{format::kKindPtx, 50, 0x11, kPtx, ""},
                                                                 {format::kKindPtx, 120, 0x11, kPtx, ""}});
  const Buffer broken(image.begin(), image.end() - 8);
  cuda::Bytes bytes;
  for (const cuda::ImageSpans& given :
       {cuda::ImageSpans{text, {}}, cuda::ImageSpans{broken, {}}, cuda::ImageSpans{image, {image}}}) {
    cuda::ImageSpans spans = given;
    CHECK(cuda::keep_runnable({{9, 0}}, spans, bytes) == CUDA_SUCCESS);
    CHECK(spans.image.data() == given.image.data());
    CHECK(spans.image.size() == given.image.size());
  }
}

TEST_CASE("PTX text is measured up to its NUL and read for its target") {
  const std::string ptx = "  // comment\n.version 8.0\n.target sm_90a, debug\n";
  CHECK(cuda::image_extent(ptx.c_str()) == ptx.size() + 1);
  const Buffer bytes = to_buffer(ptx);
  const auto entries = parsed(bytes);
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].kind == CodeKind::ptx);
  CHECK(entries[0].arch == 90);
  CHECK(entries[0].exact_arch);
  CHECK(entries[0].debug);
}

TEST_CASE("rejects bytes that are not an image") {
  std::vector<cuda::ImageEntry> entries;
  for (const std::string& text : {std::string(), std::string("x"), std::string("   "), std::string("hello"),
                                  std::string("\xB1"), std::string("\x7f"), std::string("\x50\xED", 2),
                                  std::string("!<arch>\n"), std::string("\xED\x43\x4E\x7F", 4)}) {
    CHECK(cuda::parse_image(to_buffer(text), entries) == CUDA_ERROR_INVALID_IMAGE);
    CHECK(cuda::image_extent(text.c_str()) == 0);
    cuda::ImageSpans spans;
    CHECK(cuda::locate_image(text.c_str(), spans) == CUDA_ERROR_INVALID_IMAGE);
  }
  cuda::ImageSpans spans;
  CHECK(cuda::locate_image(nullptr, spans) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a wrapper refers to its container and in version 2 to the files to link") {
  const Buffer main = container({{format::kKindPtx, 75, 0x11, kPtx, ""}});
  const Buffer first = container({{format::kKindPtx, 80, 0x11, kPtx, ""}});
  const Buffer second =
      container({{format::kKindPtx, 80, 0x11, kPtx, ""}, {format::kKindPtx, 90, 0x11, kPtx, ""}});
  const void* files[] = {first.data(), second.data(), nullptr};

  format::WrapperHeader wrapper{format::kWrapperMagic, 1, main.data(), files};
  cuda::ImageSpans spans;
  REQUIRE(cuda::locate_image(&wrapper, spans) == CUDA_SUCCESS);
  CHECK(spans.image.data() == main.data());
  CHECK(spans.image.size() == main.size());
  CHECK(spans.linked.empty());  // only version 2 has a list
  CHECK(cuda::image_extent(&wrapper) == 0);

  wrapper.version = 2;
  REQUIRE(cuda::locate_image(&wrapper, spans) == CUDA_SUCCESS);
  REQUIRE(spans.linked.size() == 2);
  CHECK(spans.linked[1].size() == second.size());

  cuda::Image image;
  REQUIRE(cuda::parse_image(spans, image) == CUDA_SUCCESS);
  cuda::CodeSelection selection;
  REQUIRE(cuda::select_code(image, {9, 0, false}, selection) == CUDA_SUCCESS);
  CHECK(selection.link);
  REQUIRE(selection.entries.size() == 2);
  CHECK(selection.entries[0]->arch == 80);
  CHECK(selection.entries[1]->arch == 90);
  CHECK(cuda::select_code(image, {7, 5, false}, selection) == CUDA_ERROR_NO_BINARY_FOR_GPU);

  // Transfers the bundle and converts it back to a pointer that a driver accepts.
  cuda::Bytes wire;
  REQUIRE(cuda::bundle(spans, wire) == CUDA_SUCCESS);
  cuda::Bundle received;
  REQUIRE(received.parse(wire.view()) == CUDA_SUCCESS);
  cuda::ImageSpans again;
  REQUIRE(cuda::locate_image(received.loadable(), again) == CUDA_SUCCESS);
  REQUIRE(again.linked.size() == 2);
  CHECK(std::equal(again.image.begin(), again.image.end(), main.begin(), main.end()));
  CHECK(std::equal(again.linked[0].begin(), again.linked[0].end(), first.begin(), first.end()));
  CHECK(std::equal(again.linked[1].begin(), again.linked[1].end(), second.begin(), second.end()));
}

TEST_CASE("an image without code for the device is described with what the device needs") {
  const auto why = [](const std::vector<Part>& parts, const cuda::CodeTarget& target) {
    const Buffer bytes = container(parts);
    return cuda::why_nothing_fits({parsed(bytes), {}}, target);
  };
  const Part cubin{format::kKindElf, 80, 0x11, "x", ""};
  CHECK(why({cubin, {format::kKindElf, 90, 0x11 | format::kFlagExactArch, "x", ""}, cubin}, {9, 0, true}) ==
        "the image holds machine code for sm_80, sm_90a and no PTX; the device, of compute capability 9.0, "
        "needs PTX for compute_90 or older: "
        "compile with -gencode arch=compute_90,code=compute_90");
  CHECK(why({{format::kKindPtx, 120, 0x11, kPtx, ""}}, {8, 6, false}) ==
        "the image holds no machine code and PTX for compute_120; the device, of compute capability 8.6, "
        "needs PTX for compute_86 or older, or "
        "machine code for sm_86: compile with -gencode arch=compute_86,code=compute_86");
  std::vector<Part> many;
  for (uint32_t arch = 100; arch < 1000; ++arch) many.push_back({format::kKindElf, arch, 0x11, "x", ""});
  CHECK(why(many, {9, 0, true}).size() < 600);  // must fit into a line on stderr
}

TEST_CASE("the best entry is the newest cubin that runs, else the newest PTX that compiles") {
  const auto elf = [](uint32_t arch, uint64_t flags = 0) {
    return Part{format::kKindElf, arch, 0x11 | flags, "x", ""};
  };
  const auto ptx = [](uint32_t arch, uint64_t flags = 0) {
    return Part{format::kKindPtx, arch, 0x11 | flags, "x", ""};
  };
  const Buffer bytes =
      container({elf(75), elf(80), elf(86), elf(90), elf(90, format::kFlagExactArch),
                 elf(100, format::kFlagFamilyArch), elf(103, format::kFlagExactArch), ptx(75), ptx(90),
                 ptx(90, format::kFlagExactArch), ptx(100, format::kFlagFamilyArch)});
  const auto entries = parsed(bytes);
  CHECK(choice(entries, 7, 0) == "-");
  CHECK(choice(entries, 7, 5) == "sm_75");
  CHECK(choice(entries, 8, 0) == "sm_80");
  CHECK(choice(entries, 8, 6) == "sm_86");
  CHECK(choice(entries, 8, 9) == "sm_86");
  CHECK(choice(entries, 9, 0) == "sm_90a");
  CHECK(choice(entries, 10, 0) == "sm_100f");
  CHECK(choice(entries, 10, 1) == "sm_100f");
  CHECK(choice(entries, 10, 3) == "sm_103a");
  CHECK(choice(entries, 11, 0) == "ptx 90");
  CHECK(choice(entries, 12, 0) == "ptx 90");
  CHECK(choice(entries, 8, 6, true) == "ptx 75");
  CHECK(choice(entries, 9, 0, true) == "ptx 90a");
  CHECK(choice(entries, 10, 3, true) == "ptx 100f");
  CHECK(choice(entries, 13, 0, true) == "ptx 90");
}

TEST_CASE("rejects a compressed entry with a wrong size before allocating memory") {
  for (const uint64_t packing : {format::kFlagLz4, format::kFlagZstd}) {
    Buffer bytes = container({{format::kKindPtx, 75, 0x11 | packing, kPtx, ""}});
    for (const uint64_t claimed : {uint64_t{0}, kPtx.size() - 1, kPtx.size() + 1, uint64_t{1} << 29,
                                   uint64_t{1} << 40, ~uint64_t{0}}) {
      std::memcpy(
          bytes.data() + sizeof(format::ContainerHeader) + offsetof(format::EntryHeader, uncompressed_size),
          &claimed, sizeof(claimed));
      const auto entries = parsed(bytes);
      cuda::Bytes out;
      CHECK(cuda::unpack_entry(entries[0], out) == CUDA_ERROR_INVALID_IMAGE);
    }
    const uint64_t honest = kPtx.size();
    std::memcpy(
        bytes.data() + sizeof(format::ContainerHeader) + offsetof(format::EntryHeader, uncompressed_size),
        &honest, sizeof(honest));
    const auto entries = parsed(bytes);
    cuda::Bytes out;
    CHECK(cuda::unpack_entry(entries[0], out, honest - 1) == CUDA_ERROR_INVALID_IMAGE);
    CHECK(cuda::unpack_entry(entries[0], out, honest) == CUDA_SUCCESS);
  }
}

TEST_CASE("rejects an endless list of entries") {
  const std::vector<Part> parts(cuda::kMaxEntries + 1, Part{format::kKindPtx, 75, 0x11, "", ""});
  std::vector<cuda::ImageEntry> entries;
  CHECK(cuda::parse_image(container(parts), entries) == CUDA_ERROR_INVALID_IMAGE);
}
