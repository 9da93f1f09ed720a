#include "protocol/images/linked_cubin.h"

#include <elf.h>

#include <cstring>

#include "protocol/images/fatbin_format.h"

namespace gpupool::cuda {
namespace {

constexpr std::string_view kSection = ".softgpu.ptx";
constexpr uint8_t kAbiVersion = 8;  // the architecture is in the second byte of the flags

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::string make_linked_cubin(std::span<const std::string> texts, uint32_t arch) {
  const std::string names = '\0' + std::string(kSection) + '\0';
  std::vector<Elf64_Shdr> sections(1);  // the first section is empty in every ELF file
  std::string cubin(sizeof(Elf64_Ehdr), '\0');
  const auto add = [&](uint32_t type, uint32_t name, std::string_view bytes) {
    Elf64_Shdr section{};
    section.sh_name = name;
    section.sh_type = type;
    section.sh_offset = cubin.size();
    section.sh_size = bytes.size();
    section.sh_addralign = 1;
    sections.push_back(section);
    cubin += bytes;
  };
  for (const std::string& text : texts) add(SHT_PROGBITS, 1, text);
  add(SHT_STRTAB, 0, names);
  cubin.resize((cubin.size() + 7) & ~size_t{7});

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_ident[EI_ABIVERSION] = kAbiVersion;
  header.e_type = ET_EXEC;
  header.e_machine = fatbin_format::kElfMachineCuda;
  header.e_version = EV_CURRENT;
  header.e_flags = arch << 8;
  header.e_ehsize = sizeof header;
  header.e_shoff = cubin.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<uint16_t>(sections.size());
  header.e_shstrndx = static_cast<uint16_t>(sections.size() - 1);
  std::memcpy(cubin.data(), &header, sizeof header);
  for (const Elf64_Shdr& section : sections) append(cubin, section);
  return cubin;
}

std::vector<std::string_view> texts_of_linked_cubin(ByteSpan elf) {
  const std::string_view bytes(reinterpret_cast<const char*>(elf.data()), elf.size());
  const auto part = [&](uint64_t offset, uint64_t size) {
    return offset <= bytes.size() && size <= bytes.size() - offset ? bytes.substr(offset, size)
                                                                   : std::string_view();
  };
  const auto read = [&](uint64_t offset, auto& value) {
    const std::string_view at = part(offset, sizeof value);
    if (!at.empty()) std::memcpy(&value, at.data(), sizeof value);
    return !at.empty();
  };
  Elf64_Ehdr header{};
  if (!read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum > kMaxLinkedTexts + 2 ||
      header.e_shoff > bytes.size()) {
    return {};
  }
  const auto section_at = [&](uint64_t index, Elf64_Shdr& section) {
    return read(header.e_shoff + index * sizeof section, section);
  };
  Elf64_Shdr strings{};
  if (!section_at(header.e_shstrndx, strings)) return {};
  const std::string_view names = part(strings.sh_offset, strings.sh_size);
  std::vector<std::string_view> texts;
  for (uint32_t i = 1; i < header.e_shnum; ++i) {
    Elf64_Shdr section{};
    if (!section_at(i, section)) return {};
    const std::string_view name =
        section.sh_name < names.size() ? names.substr(section.sh_name) : std::string_view();
    if (name.substr(0, name.find('\0')) != kSection) continue;
    texts.push_back(part(section.sh_offset, section.sh_size));
    if (texts.back().empty()) return {};
  }
  return texts;
}

}  // namespace gpupool::cuda
