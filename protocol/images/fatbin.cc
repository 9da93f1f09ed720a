#include "protocol/images/fatbin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "protocol/images/fatbin_format.h"

namespace gpupool::cuda {
namespace {

using namespace fatbin_format;

bool inside(uint64_t offset, uint64_t size, uint64_t limit) {
  return offset <= limit && size <= limit - offset;
}

uint32_t magic_of(ByteSpan bytes) {
  uint32_t magic = 0;
  read_at(bytes, 0, magic);
  return magic;
}

// Compares byte by byte, because text may end (with a NUL) before four bytes do.
bool starts_with(const std::byte* bytes, uint32_t magic) {
  for (int i = 0; i < 4; ++i) {
    if (bytes[i] != static_cast<std::byte>(magic >> (8 * i))) return false;
  }
  return true;
}

bool is_elf(ByteSpan bytes) {
  return bytes.size() >= SELFMAG && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0;
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// PTX starts with a directive or a comment, after blank space.
bool looks_like_ptx(const char* text, uint64_t size) {
  uint64_t i = 0;
  while (i < size && is_space(text[i])) ++i;
  return i < size && (text[i] == '.' || text[i] == '/');
}

std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view until_nul(std::string_view text) {
  return text.substr(0, text.find('\0'));
}

// Returns the end of the last part that the ELF headers describe, or 0 if they are inconsistent. `elf` may be
// memory behind a bare pointer, whose size is unknown; `limit` then bounds what the headers may claim.
uint64_t elf_extent(const std::byte* elf, uint64_t limit) {
  const ByteSpan bytes(elf, limit);
  Elf64_Ehdr header;
  if (!read_at(bytes, 0, header) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return 0;
  }
  uint64_t end = sizeof(header);
  if (header.e_shnum != 0) {
    const uint64_t table = uint64_t{header.e_shnum} * header.e_shentsize;
    if (header.e_shentsize < sizeof(Elf64_Shdr) || !inside(header.e_shoff, table, limit)) return 0;
    end = std::max(end, header.e_shoff + table);
    for (uint32_t i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr section;
      if (!read_at(bytes, header.e_shoff + uint64_t{i} * header.e_shentsize, section)) return 0;
      if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
      if (!inside(section.sh_offset, section.sh_size, limit)) return 0;
      end = std::max(end, section.sh_offset + section.sh_size);
    }
  }
  if (header.e_phnum != 0) {
    const uint64_t table = uint64_t{header.e_phnum} * header.e_phentsize;
    if (header.e_phentsize < sizeof(Elf64_Phdr) || !inside(header.e_phoff, table, limit)) return 0;
    end = std::max(end, header.e_phoff + table);
    for (uint32_t i = 0; i < header.e_phnum; ++i) {
      Elf64_Phdr part;
      if (!read_at(bytes, header.e_phoff + uint64_t{i} * header.e_phentsize, part)) return 0;
      if (part.p_filesz == 0) continue;
      if (!inside(part.p_offset, part.p_filesz, limit)) return 0;
      end = std::max(end, part.p_offset + part.p_filesz);
    }
  }
  return end;
}

CUresult parse_elf(ByteSpan bytes, std::vector<ImageEntry>& entries) {
  const uint64_t size = elf_extent(bytes.data(), bytes.size());
  Elf64_Ehdr header;
  if (size == 0 || size > kMaxImageBytes || !read_at(bytes, 0, header) ||
      header.e_machine != kElfMachineCuda) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  ImageEntry entry;
  entry.kind = CodeKind::elf;
  // Toolkits up to 12 (ABI version 7) keep the architecture in the lowest byte, later ones in the one above.
  entry.arch = (header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 : header.e_flags) & 0xff;
  entry.payload = bytes.first(size);
  entry.unpacked_size = size;
  entries.push_back(entry);
  return CUDA_SUCCESS;
}

// ".target sm_90a, debug" -> 90, exact, debug.
void read_target(std::string_view ptx, ImageEntry& entry) {
  const size_t at = ptx.find(".target");
  if (at == std::string_view::npos) return;
  std::string_view line = ptx.substr(at, std::min(ptx.find('\n', at), ptx.size()) - at);
  const size_t sm = line.find("sm_");
  if (sm == std::string_view::npos) return;
  size_t i = sm + 3;
  uint32_t arch = 0;
  for (; i < line.size() && line[i] >= '0' && line[i] <= '9' && arch < 1000; ++i)
    arch = arch * 10 + (line[i] - '0');
  entry.arch = arch;
  entry.exact_arch = i < line.size() && line[i] == 'a';
  entry.family_arch = i < line.size() && line[i] == 'f';
  entry.debug = line.find("debug") != std::string_view::npos;
}

CUresult parse_ptx(ByteSpan bytes, std::vector<ImageEntry>& entries) {
  const std::string_view text = until_nul(as_text(bytes));
  if (text.size() > kMaxImageBytes || !looks_like_ptx(text.data(), text.size()))
    return CUDA_ERROR_INVALID_IMAGE;
  ImageEntry entry;
  entry.kind = CodeKind::ptx;
  read_target(text, entry);
  entry.payload = bytes.first(text.size());
  entry.unpacked_size = text.size();
  entries.push_back(entry);
  return CUDA_SUCCESS;
}

// Parses one entry at the start of `bytes` and stores its length.
bool parse_entry(ByteSpan bytes, ImageEntry& entry, uint64_t& length) {
  EntryHeader header;
  if (!read_at(bytes, 0, header) || header.header_size < sizeof(header) ||
      !inside(header.header_size, header.padded_payload, bytes.size())) {
    return false;
  }
  length = header.header_size + header.padded_payload;
  entry.record = bytes.first(length);
  const ByteSpan head = bytes.first(header.header_size);

  entry.kind = header.kind == kKindPtx   ? CodeKind::ptx
               : header.kind == kKindElf ? CodeKind::elf
                                         : CodeKind::other;
  entry.arch = header.arch;
  entry.exact_arch = (header.flags & kFlagExactArch) != 0;
  entry.family_arch = (header.flags & kFlagFamilyArch) != 0;
  entry.debug = (header.flags & kFlagDebug) != 0;
  entry.packing = (header.flags & kFlagLz4) != 0    ? Packing::lz4
                  : (header.flags & kFlagZstd) != 0 ? Packing::zstd
                                                    : Packing::plain;

  uint64_t payload = header.padded_payload;
  if (entry.packing != Packing::plain) {
    if (header.compressed_size > payload) return false;
    payload = header.compressed_size;
    entry.unpacked_size = header.uncompressed_size;
  } else {
    entry.unpacked_size = payload;
  }
  entry.payload = bytes.subspan(header.header_size, payload);

  if (header.name_offset != 0 && inside(header.name_offset, header.name_length, head.size())) {
    entry.name = until_nul(as_text(head.subspan(header.name_offset, header.name_length)));
  }
  // The options of an ELF entry are a binary record, which is not needed here.
  OptionsHeader options;
  if (entry.kind == CodeKind::ptx && header.options_offset != 0 &&
      read_at(head, header.options_offset, options) && options.length != 0 &&
      inside(options.offset, options.length, head.size())) {
    entry.options = until_nul(as_text(head.subspan(options.offset, options.length)));
  }
  return true;
}

CUresult parse_container(ByteSpan bytes, std::vector<ImageEntry>& entries) {
  ContainerHeader header;
  if (!read_at(bytes, 0, header) || header.version != 1 || header.header_size < sizeof(header) ||
      !inside(header.header_size, header.size, bytes.size()) || header.size > kMaxImageBytes) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  ByteSpan rest = bytes.subspan(header.header_size, header.size);
  const size_t first = entries.size();
  while (!rest.empty()) {
    ImageEntry entry;
    uint64_t length = 0;
    if (entries.size() - first == kMaxEntries || !parse_entry(rest, entry, length))
      return CUDA_ERROR_INVALID_IMAGE;
    entries.push_back(entry);
    rest = rest.subspan(length);
  }
  return CUDA_SUCCESS;
}

}  // namespace

uint64_t image_extent(const void* image) {
  if (image == nullptr) return 0;
  const auto* bytes = static_cast<const std::byte*>(image);
  const auto* text = static_cast<const char*>(image);
  if (starts_with(bytes, kContainerMagic)) {
    ContainerHeader header;
    std::memcpy(&header, image, sizeof(header));
    if (header.version != 1 || header.header_size < sizeof(header) || header.size > kMaxImageBytes) return 0;
    return header.header_size + header.size;
  }
  if (starts_with(bytes, kElfMagic)) return elf_extent(bytes, kMaxImageBytes);
  // Reads text up to its NUL and no further.
  uint64_t i = 0;
  while (is_space(text[i])) ++i;
  if (text[i] != '.' && text[i] != '/') return 0;
  const uint64_t size = strnlen(text, kMaxImageBytes);
  return size == kMaxImageBytes ? 0 : size + 1;
}

bool is_fat_binary(const void* image) {
  const auto* const bytes = static_cast<const std::byte*>(image);
  return starts_with(bytes, kWrapperMagic) || starts_with(bytes, kContainerMagic);
}

CUresult locate_image(const void* image, ImageSpans& spans) {
  spans = {};
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto as_span = [](const void* at, ByteSpan& span) {
    const uint64_t size = image_extent(at);
    span = ByteSpan(static_cast<const std::byte*>(at), size);
    return size != 0;
  };
  if (as_span(image, spans.image)) return CUDA_SUCCESS;

  if (!starts_with(static_cast<const std::byte*>(image), kWrapperMagic)) return CUDA_ERROR_INVALID_IMAGE;
  WrapperHeader wrapper;
  std::memcpy(&wrapper, image, sizeof(wrapper));
  if (wrapper.version != 1 && wrapper.version != 2) return CUDA_ERROR_INVALID_IMAGE;
  if (!as_span(wrapper.image, spans.image)) return CUDA_ERROR_INVALID_IMAGE;
  if (wrapper.version == 1 || wrapper.linked == nullptr) return CUDA_SUCCESS;
  for (const void* const* file = wrapper.linked; *file != nullptr; ++file) {
    if (spans.linked.size() == kMaxLinkedFiles || !as_span(*file, spans.linked.emplace_back())) {
      return CUDA_ERROR_INVALID_IMAGE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult parse_image(ByteSpan bytes, std::vector<ImageEntry>& entries) {
  if (magic_of(bytes) == kContainerMagic) return parse_container(bytes, entries);
  if (is_elf(bytes)) return parse_elf(bytes, entries);
  return parse_ptx(bytes, entries);
}

CUresult parse_image(const ImageSpans& spans, Image& image) {
  image = {};
  CUresult result = parse_image(spans.image, image.entries);
  for (const ByteSpan& file : spans.linked) {
    if (result != CUDA_SUCCESS) break;
    result = parse_image(file, image.linked.emplace_back());
  }
  return result;
}

}  // namespace gpupool::cuda
