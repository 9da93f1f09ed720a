#include "server/softgpu/runtime/cubin_stubs.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

#include "protocol/images/kernel_params.h"
#include "server/softgpu/runtime/elf_file.h"

namespace gpupool::softgpu {
namespace {

constexpr uint64_t kMaxVariableBytes = uint64_t{256} << 20;

bool is_identifier(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '$'; });
}

// Declares the cubin's variables: the data symbols of its symbol tables.
std::string variables_of(cuda::ByteSpan cubin, const std::set<std::string_view>& taken) {
  const ElfFile elf(cubin);
  std::string ptx;
  std::set<std::string_view> known = taken;
  uint64_t left = kMaxVariableBytes;
  Elf64_Shdr table{}, strings{};
  for (uint64_t i = 0; elf.section(i, &table); ++i) {
    if (table.sh_type != SHT_SYMTAB || !elf.section(table.sh_link, &strings)) continue;
    Elf64_Sym symbol{};
    for (uint64_t at = 0; at + sizeof symbol <= table.sh_size && elf.read(table.sh_offset + at, &symbol);
         at += sizeof symbol) {
      const std::string_view name = elf.text(strings, symbol.st_name);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_size == 0 || symbol.st_size > left)
        continue;
      if (!is_identifier(name) || !known.insert(name).second) continue;
      left -= symbol.st_size;
      ptx += ".visible .global .align 16 .b8 " + std::string(name) + '[' + std::to_string(symbol.st_size) +
             "];\n";
    }
  }
  return ptx;
}

}  // namespace

bool skips_machine_code() {
  static const bool skips = [] {
    const char* const text = std::getenv("SOFTGPU_SKIP_MACHINE_CODE");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return skips;
}

std::string stub_ptx_of_cubin(cuda::ByteSpan cubin, uint32_t arch) {
  std::vector<cuda::KernelLayout> kernels;
  if (cuda::kernels_of_cubin(cubin, kernels) != CUDA_SUCCESS) return {};
  std::string entries;
  std::set<std::string_view> names;
  for (const cuda::KernelLayout& kernel : kernels) {
    if (!is_identifier(kernel.name) || !names.insert(kernel.name).second) continue;
    entries += ".visible .entry " + std::string(kernel.name) + '(';
    for (size_t i = 0; i < kernel.params.size(); ++i) {
      const auto [offset, size] = kernel.params[i];
      // PTX computes offsets from sizes and alignments; this alignment reproduces the cubin's offset.
      const uint32_t alignment = offset == 0 ? 16 : std::min<uint32_t>(offset & (~offset + 1), 128);
      entries += (i == 0 ? "" : ", ") + (".param .align " + std::to_string(alignment)) + " .b8 p" +
                 std::to_string(i) + '[' + std::to_string(std::max<uint32_t>(size, 1)) + ']';
    }
    entries += ") { ret; }\n";
  }
  return ".version 8.0\n.target sm_" + std::to_string(arch) + "\n.address_size 64\n" +
         variables_of(cubin, names) + entries;
}

}  // namespace gpupool::softgpu
