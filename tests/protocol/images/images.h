// Fat binaries for tests: built here byte by byte, or by nvcc if it is installed.
#pragma once

#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "protocol/images/fatbin.h"
#include "protocol/images/fatbin_format.h"

namespace images {

using gpupool::cuda::ByteSpan;
using Buffer = std::vector<std::byte>;
namespace format = gpupool::cuda::fatbin_format;

inline Buffer to_buffer(const std::string& text) {
  Buffer bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Returns an image that make_images.sh compiled; empty if nvcc is missing or too old for it.
inline Buffer compiled(const std::string& name) {
  std::ifstream in(std::string(COMPILED_IMAGES) + "/" + name, std::ios::binary);
  return to_buffer(std::string((std::istreambuf_iterator<char>(in)), {}));
}
inline bool have_compiled() {
  return std::filesystem::exists(std::string(COMPILED_IMAGES) + "/default.fatbin");
}

struct Part {
  uint16_t kind = format::kKindPtx;
  uint32_t arch = 75;
  uint64_t flags = 0x11;
  std::string content;
  std::string options;
};

inline std::string packed(const Part& part) {
  if ((part.flags & format::kFlagLz4) != 0) {
    std::string out(LZ4_compressBound(static_cast<int>(part.content.size())), '\0');
    out.resize(LZ4_compress_default(part.content.data(), out.data(), static_cast<int>(part.content.size()),
                                    static_cast<int>(out.size())));
    return out;
  }
  if ((part.flags & format::kFlagZstd) != 0) {
    std::string out(ZSTD_compressBound(part.content.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), part.content.data(), part.content.size(), 3));
    return out;
  }
  return part.content;
}

inline Buffer container(const std::vector<Part>& parts) {
  std::string entries;
  for (const Part& part : parts) {
    std::string payload = packed(part);
    format::EntryHeader header{};
    header.kind = part.kind;
    header.version = 0x101;
    header.flags = part.flags;
    header.arch = part.arch;
    header.header_size = sizeof(header);
    if ((part.flags & (format::kFlagLz4 | format::kFlagZstd)) != 0) {
      header.compressed_size = static_cast<uint32_t>(payload.size());
      header.uncompressed_size = part.content.size();
    }
    payload.resize((payload.size() + 7) / 8 * 8);
    header.padded_payload = payload.size();
    std::string tail;
    if (!part.options.empty()) {
      header.options_offset = sizeof(header);
      const format::OptionsHeader options{sizeof(header) + sizeof(options),
                                          static_cast<uint32_t>(part.options.size())};
      tail.assign(reinterpret_cast<const char*>(&options), sizeof(options));
      tail += part.options;
      tail.resize((tail.size() + 7) / 8 * 8);
      header.header_size += static_cast<uint32_t>(tail.size());
    }
    entries.append(reinterpret_cast<const char*>(&header), sizeof(header));
    entries += tail + payload;
  }
  const format::ContainerHeader header{format::kContainerMagic, 1, sizeof(header), entries.size()};
  return to_buffer(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + entries);
}

}  // namespace images
