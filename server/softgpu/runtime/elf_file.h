// Reads a 64-bit ELF file in memory, whose headers may be hostile: every offset is checked. Any thread.
#pragma once
#include <elf.h>

#include <cstring>
#include <string_view>

#include "protocol/images/fatbin.h"

namespace gpupool::softgpu {

class ElfFile {
 public:
  explicit ElfFile(cuda::ByteSpan bytes) : bytes_(bytes) {}

  template <class T>
  bool read(uint64_t offset, T* value) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + offset, sizeof(T));
    return true;
  }
  bool section(uint64_t index, Elf64_Shdr* found) const {
    Elf64_Ehdr header;
    return read(0, &header) && index < header.e_shnum &&
           read(header.e_shoff + index * sizeof(Elf64_Shdr), found);
  }
  std::string_view text(const Elf64_Shdr& strings, uint64_t at) const {
    if (strings.sh_offset > bytes_.size() || strings.sh_size > bytes_.size() - strings.sh_offset ||
        at >= strings.sh_size)
      return {};
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + strings.sh_offset + at,
                                strings.sh_size - at);
    return rest.substr(0, rest.find('\0'));
  }

 private:
  cuda::ByteSpan bytes_;
};

}  // namespace gpupool::softgpu
