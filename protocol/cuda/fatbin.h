// Device code as programs hand it to the driver: fat binary wrappers, fat binary containers, cubins (ELF),
// PTX text.
//
//   locate_image()  from a bare pointer of this process to the bytes behind it  (client, softgpu)
//   parse_image()   from bytes to a list of entries  (anyone; the bytes may be hostile)
//   select_code()   the entries that a device should load
//   unpack_entry()  one entry's plain bytes
//   keep_runnable() the entries that some devices can run, still compressed: what is worth sending
//   bundle(), Bundle   several files as one run of bytes for the wire, and back to what a driver accepts
//
// Everything but locate_image() reads only inside the spans that it is given, whatever they hold. Nothing
// here keeps state, logs or throws, but for std::bad_alloc of small vectors; sizes are capped. Spans in
// results point into the input. Failures are CUDA's codes: INVALID_IMAGE (not an image, or a broken one),
// NO_BINARY_FOR_GPU (nothing fits), OUT_OF_MEMORY.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/cuda/byte_span.h"
#include "protocol/cuda/cuda_header.h"

namespace gpupool::cuda {

constexpr uint64_t kMaxImageBytes = uint64_t{2} << 30;     // one container, cubin or PTX text
constexpr uint64_t kMaxUnpackedBytes = uint64_t{1} << 30;  // one entry, decompressed
constexpr uint32_t kMaxEntries = 4096;                     // in one container
constexpr uint32_t kMaxLinkedFiles = 65536;                // in one wrapper of version 2

// The bytes of one image. A wrapper of version 2 (-rdc) has the linked result, for the architectures that
// nvlink saw, and the files that it was linked from; for other devices their PTX must be linked together.
struct ImageSpans {
  ByteSpan image;                // a container, an ELF file or PTX text
  std::vector<ByteSpan> linked;  // containers
};

// How many bytes the image behind a bare pointer has, by its own headers: a container, a cubin, or PTX up to
// and with its NUL. 0: no such image (a wrapper counts as none, since its parts lie elsewhere).
uint64_t image_extent(const void* image);

// A wrapper or a container, which may have code for several devices; not a cubin or PTX.
bool is_fat_binary(const void* image);

// As image_extent(), also following a wrapper's pointers. The pointer is the program's own: a wrong one faults, as
// with any driver.
CUresult locate_image(const void* image, ImageSpans& spans);

enum class CodeKind : uint8_t { ptx, elf, other };
enum class Packing : uint8_t { plain, lz4, zstd };

struct ImageEntry {
  CodeKind kind = CodeKind::other;
  Packing packing = Packing::plain;
  bool exact_arch = false;   // sm_90a: runs on that architecture alone
  bool family_arch = false;  // sm_100f: runs on later ones of its family
  bool debug = false;        // compiled with -G
  uint32_t arch = 0;         // 10 * major + minor, as in sm_86
  uint64_t unpacked_size = 0;
  ByteSpan payload;          // compressed bytes where packing says so
  ByteSpan record;           // header and payload as they lie in the container; empty for bare ELF and PTX
  std::string_view options;  // for the PTX compiler, as in "-O1  -maxrregcount=32"
  std::string_view name;     // the source file, where one was recorded
};

struct Image {
  std::vector<ImageEntry> entries;
  std::vector<std::vector<ImageEntry>> linked;  // one list per file, as in ImageSpans
};

CUresult parse_image(ByteSpan bytes, std::vector<ImageEntry>& entries);
CUresult parse_image(const ImageSpans& spans, Image& image);

// What a device can load.
struct CodeTarget {
  int major = 0;
  int minor = 0;
  bool ptx_only = false;  // softgpu executes PTX and nothing else
};

// One entry, or one PTX entry per file to be linked together.
struct CodeSelection {
  bool link = false;
  std::vector<const ImageEntry*> entries;  // into the image
};

// A cubin of the device's major version and not newer than it is best (the newest one; arch-specific ones fit
// exactly or not at all), then linking the files of a wrapper, then the newest PTX that is not newer than the
// device.
CUresult select_code(const Image& image, const CodeTarget& target, CodeSelection& selection);
// The same within one list: nullptr where nothing fits.
const ImageEntry* select_entry(const std::vector<ImageEntry>& entries, const CodeTarget& target);
// One line for the user when nothing fits: the architectures in the image, what the device needs, how to compile.
std::string why_nothing_fits(const Image& image, const CodeTarget& target);

// Bytes with an owner where they had to be made, without one where they were there already.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(ByteSpan borrowed) : view_(borrowed) {}
  static Bytes allocate(uint64_t size);  // view() stays empty when memory is short
  ByteSpan view() const { return view_; }
  std::byte* writable() { return owned_.get(); }  // of an allocated one
  // Up to the first NUL: PTX entries are padded with NULs.
  std::string_view text() const;

 private:
  std::unique_ptr<std::byte[]> owned_;
  ByteSpan view_;
};

// Decompresses, or borrows what was not compressed. The result is exactly unpacked_size long, or
// INVALID_IMAGE is given.
CUresult unpack_entry(const ImageEntry& entry, Bytes& bytes, uint64_t max_bytes = kMaxUnpackedBytes);

// Replaces a container by one in `bytes` without the machine code and PTX that none of the devices can run. Leaves an image alone
// that has files to be linked, is no container, is broken, or has nothing for one of the devices: the driver shall see what the
// program gave.
CUresult keep_runnable(const std::vector<CodeTarget>& targets, ImageSpans& spans, Bytes& bytes);

// The files of one image as one run of bytes: {u32 magic, u32 count, {u64 size} * count, files padded to 8
// bytes}.
CUresult bundle(const ImageSpans& spans, Bytes& bytes);

// A received bundle. Owns nothing of the bytes, which must outlive it.
class Bundle {
 public:
  CUresult parse(ByteSpan bytes);
  const ImageSpans& spans() const { return spans_; }
  // What cuModuleLoadData and cuLibraryLoadData of a local driver accept: the image itself, or a wrapper of
  // version 2 around it, valid as long as this object and the bytes. PTX without a NUL is refused by parse().
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
