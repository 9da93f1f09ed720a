#include "server/softgpu/runtime/host_object.h"

#include <ar.h>

#include <algorithm>
#include <charconv>

#include "protocol/images/fatbin_format.h"
#include "server/softgpu/runtime/elf_file.h"

namespace gpupool::softgpu {
namespace {

using namespace cuda::fatbin_format;

// A section holds one container after the other.
void add_containers(cuda::ByteSpan section, std::vector<cuda::ByteSpan>& found) {
  constexpr uint64_t kAlignment = 8;
  ContainerHeader header;
  while (section.size() >= sizeof header) {
    std::memcpy(&header, section.data(), sizeof header);
    if (header.magic == 0) {  // padding
      section = section.subspan(kAlignment);
      continue;
    }
    if (header.magic != kContainerMagic || header.header_size < sizeof header ||
        header.header_size > section.size())
      return;
    if (header.size > section.size() - header.header_size) return;
    const uint64_t bytes = header.header_size + header.size;
    found.push_back(section.first(bytes));
    section = section.subspan(std::min((bytes + kAlignment - 1) / kAlignment * kAlignment, section.size()));
  }
}

void add_object(cuda::ByteSpan object, std::vector<cuda::ByteSpan>& found) {
  const ElfFile elf(object);
  Elf64_Ehdr header;
  Elf64_Shdr names, section;
  if (!elf.read(0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      !elf.section(header.e_shstrndx, &names))
    return;
  for (uint64_t i = 0; elf.section(i, &section); ++i) {
    const std::string_view name = elf.text(names, section.sh_name);
    if (name != ".nv_fatbin" && name != "__nv_relfatbin") continue;  // the latter: compiled with -rdc=true
    if (section.sh_offset > object.size() || section.sh_size > object.size() - section.sh_offset) continue;
    add_containers(object.subspan(section.sh_offset, section.sh_size), found);
  }
}

}  // namespace

bool is_archive(cuda::ByteSpan bytes) {
  return bytes.size() >= SARMAG && std::memcmp(bytes.data(), ARMAG, SARMAG) == 0;
}

std::vector<cuda::ByteSpan> fat_binaries_of(cuda::ByteSpan bytes) {
  std::vector<cuda::ByteSpan> found;
  if (!is_archive(bytes)) {
    add_object(bytes, found);
    return found;
  }
  bytes = bytes.subspan(SARMAG);
  ar_hdr member;
  while (bytes.size() >= sizeof member) {
    std::memcpy(&member, bytes.data(), sizeof member);
    bytes = bytes.subspan(sizeof member);
    uint64_t size = 0;
    const auto read = std::from_chars(member.ar_size, member.ar_size + sizeof member.ar_size, size);
    if (read.ec != std::errc() || size > bytes.size()) return found;
    add_object(bytes.first(size), found);
    bytes = bytes.subspan(std::min(size + size % 2, bytes.size()));
  }
  return found;
}

}  // namespace gpupool::softgpu
