// Device code as programs pass it to the driver: fat binary wrappers, fat binary containers, cubins (ELF),
// PTX text. Used by the client library, the worker and softgpu.
//
//   locate_image()     finds the bytes behind a bare pointer of this process (client, softgpu)
//   parse_image()      splits bytes into entries
//   select_code()      selects the entries that a device should load
//   unpack_entry()     decompresses one entry
//   keep_runnable()    drops the entries that none of the given devices can run
//   bundle(), Bundle   turn the files of an image into one run of bytes for the wire, and back into what a
//                      driver accepts
//
// Functions that take a bare pointer read what is behind it; all others read only inside the spans that they
// are given, and the bytes may be hostile. No state, any thread, no logging; nothing throws but
// std::bad_alloc of small vectors. Sizes are capped. Spans in results point into the input. Errors are
// CUDA's: INVALID_IMAGE (not an image, or a broken one), NO_BINARY_FOR_GPU (no code for the device),
// OUT_OF_MEMORY.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "protocol/images/byte_span.h"

namespace gpupool::cuda {

constexpr uint64_t kMaxImageBytes = uint64_t{2} << 30;     // one container, cubin or PTX text
constexpr uint64_t kMaxUnpackedBytes = uint64_t{1} << 30;  // one entry, decompressed
constexpr uint32_t kMaxEntries = 4096;                     // in one container
constexpr uint32_t kMaxLinkedFiles = 65536;                // in one wrapper of version 2

// The bytes of one image. A wrapper of version 2 (nvcc -rdc) has the linked result, for the architectures
// that nvlink was given, and the files that it was linked from; for other devices the PTX of those files must
// be linked.
struct ImageSpans {
  ByteSpan image;                // a container, an ELF file or PTX text
  std::vector<ByteSpan> linked;  // containers
};

// Bytes of the image behind a bare pointer, by its own headers: a container, a cubin, or PTX including its
// NUL. 0: no such image (a wrapper counts as none, because its parts are elsewhere).
uint64_t image_extent(const void* image);

// True for a wrapper or a container, which may have code for several devices; false for a cubin or PTX.
bool is_fat_binary(const void* image);

// Finds the image behind a bare pointer, as image_extent() does, and also follows a wrapper's pointers. The
// pointer is the program's own: a wrong one faults, as with any driver.
CUresult locate_image(const void* image, ImageSpans& spans);

enum class CodeKind : uint8_t { ptx, elf, other };
enum class Packing : uint8_t { plain, lz4, zstd };

struct ImageEntry {
  CodeKind kind = CodeKind::other;
  Packing packing = Packing::plain;
  bool exact_arch = false;   // sm_90a: runs on that architecture alone
  bool family_arch = false;  // sm_100f: also runs on later architectures of its family
  bool debug = false;        // compiled with -G
  uint32_t arch = 0;         // 10 * major + minor, as in sm_86
  uint64_t unpacked_size = 0;
  ByteSpan payload;          // compressed unless `packing` is plain
  ByteSpan record;           // header and payload as in the container; empty for bare ELF and PTX
  std::string_view options;  // for the PTX compiler, as in "-O1  -maxrregcount=32"
  std::string_view name;     // of the source file, if it was recorded
};

struct Image {
  std::vector<ImageEntry> entries;
  std::vector<std::vector<ImageEntry>> linked;  // one list per file, as in ImageSpans
};

CUresult parse_image(ByteSpan bytes, std::vector<ImageEntry>& entries);
CUresult parse_image(const ImageSpans& spans, Image& image);

// A device, by the code that it can load.
struct CodeTarget {
  int major = 0;
  int minor = 0;
  bool ptx_only = false;  // softgpu executes only PTX
};

// One entry to load, or (`link`) one PTX entry per file to be linked together.
struct CodeSelection {
  bool link = false;
  std::vector<const ImageEntry*> entries;  // into the image
};

// Selects, in this order: the newest cubin of the device's major version that is not newer than the device
// (an architecture-specific one only if it matches exactly); the PTX of a wrapper's files, to be linked; the
// newest PTX that is not newer than the device.
CUresult select_code(const Image& image, const CodeTarget& target, CodeSelection& selection);
// Selects within one list; null if nothing fits.
const ImageEntry* select_entry(const std::vector<ImageEntry>& entries, const CodeTarget& target);
// Returns one line for users about why nothing fits: the architectures in the image, what the device needs,
// how to compile.
std::string why_nothing_fits(const Image& image, const CodeTarget& target);

// Bytes that this object owns if they had to be produced, and borrows otherwise.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(ByteSpan borrowed) : view_(borrowed) {}
  static Bytes allocate(uint64_t size);  // view() is empty if memory is short
  ByteSpan view() const { return view_; }
  std::byte* writable() { return owned_.get(); }  // only for allocated bytes
  // The text up to the first NUL: PTX entries are padded with NULs.
  std::string_view text() const;

 private:
  std::unique_ptr<std::byte[]> owned_;
  ByteSpan view_;
};

// Decompresses an entry, or borrows its bytes if they are not compressed. INVALID_IMAGE unless the result has
// exactly unpacked_size bytes.
CUresult unpack_entry(const ImageEntry& entry, Bytes& bytes, uint64_t max_bytes = kMaxUnpackedBytes);

// Replaces a container by one in `bytes` without the machine code and PTX that none of the devices can run.
// An image that has files to be linked, is not a container, is broken, or has nothing for one of the devices
// is left alone, so that the driver sees what the program passed.
CUresult keep_runnable(const std::vector<CodeTarget>& targets, ImageSpans& spans, Bytes& bytes);

// Writes the files of one image as one run of bytes: {u32 magic, u32 count, {u64 size} * count, files padded
// to 8 bytes}.
CUresult bundle(const ImageSpans& spans, Bytes& bytes);

// A received bundle. Refers to the bytes, which must outlive it.
class Bundle {
 public:
  CUresult parse(ByteSpan bytes);
  const ImageSpans& spans() const { return spans_; }
  // Returns what cuModuleLoadData and cuLibraryLoadData of a local driver accept: the image itself, or a
  // wrapper of version 2 around it. Valid as long as this object and the bytes. parse() rejects PTX without a
  // NUL.
  const void* loadable();

 private:
  struct Wrapper {
    uint32_t magic;
    uint32_t version;
    const void* image;
    const void* const* linked;
  };
  ImageSpans spans_;
  Wrapper wrapper_{};
  std::vector<const void*> pointers_;
};

}  // namespace gpupool::cuda
