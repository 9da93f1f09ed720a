// Reads the names that a 64-bit ELF shared library exports from its file. Empty if it is not an ELF file.
#pragma once

#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

enum class Stubs { taken, left_out };  // left_out: without the weak stubs of exports.S

inline std::set<std::string> elf_exports(const std::string& path, Stubs stubs = Stubs::taken) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> file((std::istreambuf_iterator<char>(in)), {});
  std::set<std::string> names;
  if (file.size() < sizeof(Elf64_Ehdr)) return names;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    const char* strings = file.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file.data() + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
      if (symbols[s].st_shndx == SHN_UNDEF ||
          (stubs == Stubs::left_out && ELF64_ST_BIND(symbols[s].st_info) == STB_WEAK))
        continue;
      names.insert(strings + symbols[s].st_name);
    }
  }
  return names;
}
