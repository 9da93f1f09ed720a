// The layout of NVIDIA's fat binaries, as nvcc and fatbinary of CUDA 11 to 13 write them. All numbers are
// little-endian.
#pragma once

#include <cstdint>

namespace gpupool::cuda::fatbin_format {

constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kContainerMagic = 0xBA55ED50;
constexpr uint32_t kElfMagic = 0x464C457F;
constexpr uint16_t kElfMachineCuda = 190;

// The argument of __cudaRegisterFatBinary; its pointers are valid in the program's process.
struct WrapperHeader {
  uint32_t magic;
  uint32_t version;           // 2: `linked` is a list that ends with a null pointer
  const void* image;          // a container
  const void* const* linked;  // containers
};

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;      // 1
  uint16_t header_size;  // 16
  uint64_t size;         // bytes of the entries that follow
};
static_assert(sizeof(ContainerHeader) == 16);

constexpr uint16_t kKindPtx = 1;
constexpr uint16_t kKindElf = 2;

struct EntryHeader {
  uint16_t kind;
  uint16_t version;         // 0x101
  uint32_t header_size;     // including name and options
  uint64_t padded_payload;  // bytes from the header's end to the next entry
  uint32_t compressed_size;
  uint32_t options_offset;  // of an OptionsHeader, from the entry's start
  uint16_t minor;           // of the PTX or ELF format
  uint16_t major;
  uint32_t arch;
  uint32_t name_offset;
  uint32_t name_length;
  uint64_t flags;
  uint64_t zero;
  uint64_t uncompressed_size;
};
static_assert(sizeof(EntryHeader) == 64);

constexpr uint64_t kFlagDebug = 0x2;
constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kFlagExactArch = 0x100000;
constexpr uint64_t kFlagFamilyArch = 0x200000;

struct OptionsHeader {
  uint32_t offset;  // from the entry's start
  uint32_t length;
};

}  // namespace gpupool::cuda::fatbin_format
