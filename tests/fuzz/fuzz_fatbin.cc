// Fuzzes the parsers of fat binaries, cubins, PTX and bundles from hostile clients, with their kernels and
// variables: they must read only the input, with work proportional to its size.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cuda::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  std::vector<cuda::ImageEntry> entries;
  if (cuda::parse_image(bytes, entries) == CUDA_SUCCESS) {
    read_entries(entries);
    keep_some(bytes, entries);
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
