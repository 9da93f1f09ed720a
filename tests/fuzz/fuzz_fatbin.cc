// Fuzzes the parsers of fat binaries, cubins, PTX and bundles from hostile clients, with their kernels and
// variables: they must read only the input, with work proportional to its size.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/text/printable.h"
#include "protocol/images/fatbin.h"
#include "protocol/images/kernel_params.h"
#include "protocol/images/variables.h"

namespace cuda = gpupool::cuda;

namespace {

constexpr uint64_t kMaxUnpacked = 1 << 20;

// Names are parts of the code, each used once for a variable.
void check_names(const cuda::ModuleVariables& found, uint64_t limit) {
  uint64_t bytes = 0;
  for (const auto& [name, variable] : found.by_name) {
    if (name.empty() || name.find('\0') != std::string::npos) __builtin_trap();
    bytes += name.size();
  }
  if (found.by_name.size() > limit || bytes > cuda::kMaxVariableNameBytes) __builtin_trap();
}

void read_variables(cuda::CodeKind kind, cuda::ByteSpan code) {
  cuda::ModuleVariables found, again;
  const CUresult result = cuda::variables_of_code(kind, code, found);
  check_names(found, code.size());
  if (cuda::variables_of_code(kind, code, again) != result || again.by_name != found.by_name ||
      again.uses_heap != found.uses_heap)
    __builtin_trap();
}

void read_entries(const std::vector<cuda::ImageEntry>& entries) {
  for (const cuda::ImageEntry& entry : entries) {
    cuda::Bytes code;
    if (cuda::unpack_entry(entry, code, kMaxUnpacked) == CUDA_SUCCESS) {
      std::vector<cuda::KernelLayout> kernels;
      static_cast<void>(cuda::kernels_of_code(entry.kind, code.view(), kernels));
      read_variables(entry.kind, code.view());
    }
  }
}

// A selected image must be for the device; otherwise the reason must be short and printable.
void select(const cuda::ImageSpans& spans) {
  cuda::Image image;
  if (cuda::parse_image(spans, image) != CUDA_SUCCESS) return;
  for (const cuda::CodeTarget& target :
       {cuda::CodeTarget{7, 5, false}, cuda::CodeTarget{9, 0, false}, cuda::CodeTarget{12, 0, true}}) {
    cuda::CodeSelection selection;
    if (cuda::select_code(image, target, selection) == CUDA_SUCCESS) {
      if (selection.entries.empty()) __builtin_trap();
      continue;
    }
    const std::string why = cuda::why_nothing_fits(image, target);
    if (why.empty() || why.size() > 1000 || gpupool::printable(why) != why) __builtin_trap();
  }
}

// An accepted image must also be valid without the entries that a device cannot run.
void keep_some(cuda::ByteSpan bytes, const std::vector<cuda::ImageEntry>& entries) {
  if (entries.empty() || entries.back().arch >= 10'000) return;
  const auto arch = static_cast<int>(entries.back().arch);
  cuda::ImageSpans spans{bytes, {}};
  cuda::Bytes kept;
  std::vector<cuda::ImageEntry> again;
  if (cuda::keep_runnable({{arch / 10, arch % 10}}, spans, kept) != CUDA_SUCCESS ||
      cuda::parse_image(spans.image, again) != CUDA_SUCCESS || again.size() > entries.size() ||
      spans.image.size() > bytes.size()) {
    __builtin_trap();
  }
}

// An accepted image must arrive unchanged in a bundle, alone and with a linked file.
void bundle_up(cuda::ByteSpan bytes, const std::vector<cuda::ImageEntry>& entries) {
  const bool bare_ptx =
      entries.size() == 1 && entries[0].kind == cuda::CodeKind::ptx && entries[0].record.empty();
  if (bare_ptx && entries[0].payload.size() == bytes.size()) return;  // bundled with its NUL
  for (const size_t linked : {size_t{0}, size_t{1}}) {
    cuda::Bytes made;
    cuda::Bundle bundle;
    if (cuda::bundle({bytes, std::vector(linked, bytes)}, made) != CUDA_SUCCESS) __builtin_trap();
    if (bundle.parse(made.view()) != CUDA_SUCCESS) __builtin_trap();
    const cuda::ImageSpans& spans = bundle.spans();
    if (spans.linked.size() != linked || spans.image.size() != bytes.size() ||
        std::memcmp(spans.image.data(), bytes.data(), bytes.size()) != 0)
      __builtin_trap();
    select(spans);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cuda::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  std::vector<cuda::ImageEntry> entries;
  if (cuda::parse_image(bytes, entries) == CUDA_SUCCESS) {
    read_entries(entries);
    keep_some(bytes, entries);
    bundle_up(bytes, entries);
  }

  cuda::Bundle bundle;
  if (bundle.parse(bytes) == CUDA_SUCCESS) {
    // A local driver would follow the headers, so they must not point outside.
    cuda::ImageSpans spans;
    if (cuda::locate_image(bundle.loadable(), spans) != CUDA_SUCCESS) __builtin_trap();
    if (spans.image.data() + spans.image.size() > bytes.data() + bytes.size()) __builtin_trap();
  }
  cuda::ModuleVariables found;
  for (const bool ptx_only : {false, true}) {
    static_cast<void>(cuda::variables_of_bundle(bytes, {9, 0, ptx_only}, found));
    check_names(found, cuda::kMaxModuleVariables);
  }
  for (const auto kind : {cuda::CodeKind::ptx, cuda::CodeKind::elf}) read_variables(kind, bytes);
  std::vector<cuda::KernelLayout> kernels;
  static_cast<void>(cuda::kernels_of_cubin(bytes, kernels));
  static_cast<void>(cuda::kernels_of_ptx({reinterpret_cast<const char*>(data), size}, kernels));
  return 0;
}
