// The second half of fatbin.h: selecting, unpacking and bundling entries.
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "protocol/images/fatbin.h"
#include "protocol/images/fatbin_format.h"

namespace gpupool::cuda {
namespace {

constexpr uint32_t kBundleMagic = 0x31425047;  // "GPB1"

uint64_t padded(uint64_t size) {
  return (size + 7) & ~uint64_t{7};
}

bool runs_on(const ImageEntry& entry, const CodeTarget& target) {
  const uint32_t device = static_cast<uint32_t>(target.major * 10 + target.minor);
  if (entry.exact_arch) return entry.arch == device;
  const bool same_major = entry.arch / 10 == static_cast<uint32_t>(target.major);
  if (entry.kind == CodeKind::elf || entry.family_arch) return same_major && entry.arch <= device;
  return entry.arch <= device;
}

// Ranks cubins above PTX, then newer architectures, then code for fewer devices.
int rank(const ImageEntry& entry) {
  return (entry.kind == CodeKind::elf ? 1 << 20 : 0) + static_cast<int>(std::min(entry.arch, 9999u)) * 4 +
         (entry.exact_arch ? 2 : 0) + (entry.family_arch ? 1 : 0);
}

// Returns the architectures of an image's code of one kind, as in "sm_80, sm_90a"; empty if there is none.
std::string architectures(const Image& image, CodeKind kind) {
  constexpr size_t kMostBytes = 200;
  std::set<std::pair<uint32_t, std::string>> found;
  const auto collect = [&](const std::vector<ImageEntry>& entries) {
    for (const ImageEntry& entry : entries) {
      if (entry.kind == kind)
        found.emplace(entry.arch, entry.exact_arch ? "a" : entry.family_arch ? "f" : "");
    }
  };
  collect(image.entries);
  for (const std::vector<ImageEntry>& file : image.linked) collect(file);
  std::string text;
  for (const auto& [arch, suffix] : found) {
    if (text.size() > kMostBytes) return text + ", ...";
    text += (text.empty() ? "" : ", ") + std::string(kind == CodeKind::ptx ? "compute_" : "sm_") +
            std::to_string(arch) + suffix;
  }
  return text;
}

}  // namespace

const ImageEntry* select_entry(const std::vector<ImageEntry>& entries, const CodeTarget& target) {
  const ImageEntry* best = nullptr;
  for (const ImageEntry& entry : entries) {
    if (entry.kind == CodeKind::other || (target.ptx_only && entry.kind != CodeKind::ptx)) continue;
    if (runs_on(entry, target) && (best == nullptr || rank(entry) > rank(*best))) best = &entry;
  }
  return best;
}

CUresult select_code(const Image& image, const CodeTarget& target, CodeSelection& selection) {
  selection = {};
  const ImageEntry* best = select_entry(image.entries, target);
  if (best == nullptr || best->kind != CodeKind::elf) {
    // The linked result of an -rdc program has no PTX of its own, so the PTX of its parts is linked instead.
    CodeTarget ptx = target;
    ptx.ptx_only = true;
    for (const std::vector<ImageEntry>& file : image.linked) {
      const ImageEntry* part = select_entry(file, ptx);
      // NVIDIA's device runtime has no PTX. Linking reports missing symbols by name.
      if (part != nullptr) selection.entries.push_back(part);
    }
    selection.link = !selection.entries.empty();
    if (!image.linked.empty() && !selection.link) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  if (selection.link) return CUDA_SUCCESS;
  if (best == nullptr) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  selection.entries.push_back(best);
  return CUDA_SUCCESS;
}

std::string why_nothing_fits(const Image& image, const CodeTarget& target) {
  const std::string code = architectures(image, CodeKind::elf), ptx = architectures(image, CodeKind::ptx);
  const std::string capability = std::to_string(target.major) + "." + std::to_string(target.minor);
  const std::string arch = std::to_string(target.major * 10 + target.minor);
  return "the image holds " + (code.empty() ? "no machine code" : "machine code for " + code) + " and " +
         (ptx.empty() ? "no PTX" : "PTX for " + ptx) + "; the device, of compute capability " + capability +
         ", needs PTX for compute_" + arch + " or older" +
         (target.ptx_only ? "" : ", or machine code for sm_" + arch) +
         ": compile with -gencode arch=compute_" + arch + ",code=compute_" + arch;
}

Bytes Bytes::allocate(uint64_t size) {
  Bytes bytes;
  bytes.owned_.reset(new (std::nothrow) std::byte[size]);
  if (bytes.owned_ != nullptr) bytes.view_ = ByteSpan(bytes.owned_.get(), size);
  return bytes;
}

std::string_view Bytes::text() const {
  const std::string_view all(reinterpret_cast<const char*>(view_.data()), view_.size());
  return all.substr(0, all.find('\0'));
}

CUresult unpack_entry(const ImageEntry& entry, Bytes& bytes, uint64_t max_bytes) {
  bytes = Bytes();
  const uint64_t size = entry.unpacked_size;
  if (size == 0 || size > std::min(max_bytes, kMaxUnpackedBytes)) return CUDA_ERROR_INVALID_IMAGE;
  if (entry.packing == Packing::plain) {
    bytes = Bytes(entry.payload);
    return CUDA_SUCCESS;
  }
  const uint64_t packed = entry.payload.size();
  if (packed > INT_MAX) return CUDA_ERROR_INVALID_IMAGE;
  // Check the size before allocating: LZ4 expands a byte to at most 255, and zstd frames state their size.
  if (entry.packing == Packing::lz4) {
    if (size / 255 > packed) return CUDA_ERROR_INVALID_IMAGE;
  } else {
    const unsigned long long told = ZSTD_getFrameContentSize(entry.payload.data(), packed);
    if (told == ZSTD_CONTENTSIZE_ERROR || (told != ZSTD_CONTENTSIZE_UNKNOWN && told > size)) {
      return CUDA_ERROR_INVALID_IMAGE;
    }
  }
  Bytes unpacked = Bytes::allocate(size);
  if (unpacked.writable() == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t made = 0;
  if (entry.packing == Packing::lz4) {
    const int result = LZ4_decompress_safe(reinterpret_cast<const char*>(entry.payload.data()),
                                           reinterpret_cast<char*>(unpacked.writable()),
                                           static_cast<int>(packed), static_cast<int>(size));
    made = result < 0 ? 0 : static_cast<uint64_t>(result);
  } else {
    const size_t result = ZSTD_decompress(unpacked.writable(), size, entry.payload.data(), packed);
    made = ZSTD_isError(result) != 0 ? 0 : result;
  }
  if (made != size) return CUDA_ERROR_INVALID_IMAGE;
  bytes = std::move(unpacked);
  return CUDA_SUCCESS;
}

CUresult keep_runnable(const std::vector<CodeTarget>& targets, ImageSpans& spans, Bytes& bytes) {
  using fatbin_format::ContainerHeader;
  std::vector<ImageEntry> entries;
  if (targets.empty() || !spans.linked.empty() || parse_image(spans.image, entries) != CUDA_SUCCESS)
    return CUDA_SUCCESS;
  const auto fits = [&](const CodeTarget& target) { return select_entry(entries, target) != nullptr; };
  if (!std::all_of(targets.begin(), targets.end(), fits)) return CUDA_SUCCESS;
  const size_t dropped = std::erase_if(entries, [&](const ImageEntry& entry) {
    const auto runs = [&](const CodeTarget& target) { return runs_on(entry, target); };
    return entry.kind != CodeKind::other && std::none_of(targets.begin(), targets.end(), runs);
  });
  if (dropped == 0) return CUDA_SUCCESS;
  uint64_t size = 0;
  for (const ImageEntry& entry : entries) size += entry.record.size();
  const ContainerHeader header{fatbin_format::kContainerMagic, 1, sizeof(ContainerHeader), size};
  bytes = Bytes::allocate(sizeof(header) + size);
  std::byte* at = bytes.writable();
  if (at == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(at, &header, sizeof(header));
  at += sizeof(header);
  for (const ImageEntry& entry : entries) at = std::copy(entry.record.begin(), entry.record.end(), at);
  spans.image = bytes.view();
  return CUDA_SUCCESS;
}

CUresult bundle(const ImageSpans& spans, Bytes& bytes) {
  const uint32_t count = static_cast<uint32_t>(1 + spans.linked.size());
  const uint64_t header = 8 + uint64_t{count} * 8;
  uint64_t size = header + padded(spans.image.size());
  for (const ByteSpan& file : spans.linked) size += padded(file.size());
  bytes = Bytes::allocate(size);
  if (bytes.writable() == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;

  std::byte* at = bytes.writable();
  std::memcpy(at, &kBundleMagic, 4);
  std::memcpy(at + 4, &count, 4);
  uint64_t offset = header;
  for (uint32_t i = 0; i < count; ++i) {
    const ByteSpan& file = i == 0 ? spans.image : spans.linked[i - 1];
    const uint64_t length = file.size();
    std::memcpy(at + 8 + uint64_t{i} * 8, &length, 8);
    if (length != 0) std::memcpy(at + offset, file.data(), length);
    std::memset(at + offset + length, 0, padded(length) - length);
    offset += padded(length);
  }
  return CUDA_SUCCESS;
}

CUresult Bundle::parse(ByteSpan bytes) {
  spans_ = {};
  uint32_t magic = 0;
  uint32_t count = 0;
  if (bytes.size() < 8) return CUDA_ERROR_INVALID_IMAGE;
  std::memcpy(&magic, bytes.data(), 4);
  std::memcpy(&count, bytes.data() + 4, 4);
  if (magic != kBundleMagic || count == 0 || count - 1 > kMaxLinkedFiles || (bytes.size() - 8) / 8 < count) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  uint64_t offset = 8 + uint64_t{count} * 8;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + 8 + uint64_t{i} * 8, 8);
    if (length > kMaxImageBytes || padded(length) > bytes.size() - offset) return CUDA_ERROR_INVALID_IMAGE;
    const ByteSpan file = bytes.subspan(offset, length);
    offset += padded(length);
    // A local driver reads a file as far as its own headers say, which must not be beyond its end.
    std::vector<ImageEntry> entries;
    if (const CUresult result = parse_image(file, entries); result != CUDA_SUCCESS) return result;
    const bool bare_ptx =
        entries.size() == 1 && entries[0].kind == CodeKind::ptx && entries[0].record.empty();
    if (bare_ptx && entries[0].payload.size() == file.size()) return CUDA_ERROR_INVALID_IMAGE;  // no NUL
    (i == 0 ? spans_.image : spans_.linked.emplace_back()) = file;
  }
  return offset == bytes.size() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

const void* Bundle::loadable() {
  if (spans_.linked.empty()) return spans_.image.data();
  pointers_.clear();
  for (const ByteSpan& file : spans_.linked) pointers_.push_back(file.data());
  pointers_.push_back(nullptr);
  wrapper_ = {fatbin_format::kWrapperMagic, 2, spans_.image.data(), pointers_.data()};
  return &wrapper_;
}

}  // namespace gpupool::cuda
