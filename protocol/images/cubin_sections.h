// Finds the sections of a cubin whose headers may be hostile: nothing outside its bytes is read, which must
// outlive the object. Internal to protocol/images. Const calls from any thread.
#pragma once
#include <elf.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "protocol/images/byte_span.h"

namespace gpupool::cuda {

class CubinSections {
 public:
  // False: not a 64-bit ELF file, or the section with the names of sections is missing.
  bool open(ByteSpan cubin) {
    cubin_ = cubin;
    if (!read_at(cubin, 0, header_) || std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 ||
        header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_shentsize < sizeof(Elf64_Shdr)) {
      return false;
    }
    Elf64_Shdr section;
    if (header_.e_shstrndx >= header_.e_shnum || !at(header_.e_shstrndx, section)) return false;
    const std::optional<std::string_view> names = text(section);
    if (names) names_ = *names;
    return names.has_value();
  }

  uint32_t count() const { return header_.e_shnum; }

  // False: the section's header is outside the cubin.
  bool at(uint32_t index, Elf64_Shdr& section) const {
    return header_.e_shoff <= cubin_.size() &&
           read_at(cubin_, header_.e_shoff + uint64_t{index} * header_.e_shentsize, section);
  }

  std::optional<ByteSpan> contents(const Elf64_Shdr& section) const {
    if (section.sh_offset > cubin_.size() || section.sh_size > cubin_.size() - section.sh_offset)
      return std::nullopt;
    return cubin_.subspan(section.sh_offset, section.sh_size);
  }
  std::optional<std::string_view> text(const Elf64_Shdr& section) const {
    const std::optional<ByteSpan> bytes = contents(section);
    if (!bytes) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }

  // At most `limit` bytes from the start of the section's name on, which ends at the first NUL among them.
  std::optional<std::string_view> name(const Elf64_Shdr& section, size_t limit) const {
    if (section.sh_name > names_.size()) return std::nullopt;
    return names_.substr(section.sh_name, limit);
  }

 private:
  ByteSpan cubin_;
  Elf64_Ehdr header_{};
  std::string_view names_;
};

}  // namespace gpupool::cuda
