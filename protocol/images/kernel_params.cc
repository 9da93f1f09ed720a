#include "protocol/images/kernel_params.h"

#include <optional>

#include "protocol/images/cubin_sections.h"
#include "protocol/images/ptx_tokens.h"

namespace gpupool::cuda {
namespace {

// --- cubins ---

// A .nv.info section is a sequence of records {u8 format, u8 attribute, u16 value or size of the data behind
// it}.
constexpr uint8_t kFormatSized = 4;
constexpr uint8_t kAttributeParam =
    0x17;  // {u32 index, u16 ordinal, u16 offset, u32 flags, size in bits 18 and up}
constexpr uint8_t kAttributeParamV2 =
    0x45;  // {u32 index, u16 ordinal, u16 offset, u32 size}: for kernels with large parameters

struct ParamRecord {
  uint32_t index;
  uint16_t ordinal;
  uint16_t offset;
  uint32_t size;
};
static_assert(sizeof(ParamRecord) == 12);

// `budget`: how many more parameters are accepted, so that overlapping sections cannot multiply them.
bool read_info(ByteSpan info, std::vector<KernelParam>& params, uint64_t& budget) {
  std::vector<bool> seen;
  uint64_t at = 0;
  while (at < info.size()) {
    struct {
      uint8_t format;
      uint8_t attribute;
      uint16_t value;
    } head;
    if (!read_at(info, at, head)) return false;
    at += sizeof(head);
    if (head.format != kFormatSized) continue;
    if (head.value > info.size() - at) return false;
    if (head.attribute == kAttributeParam || head.attribute == kAttributeParamV2) {
      ParamRecord record;
      if (head.value < sizeof(record) || !read_at(info, at, record)) return false;
      const uint32_t size = head.attribute == kAttributeParam ? record.size >> 18 : record.size;
      if (size > kMaxParamBytes || record.offset + size > kMaxParamBytes) return false;
      if (record.ordinal >= params.size()) {
        const uint64_t more = record.ordinal + 1u - params.size();
        if (more > budget) return false;
        budget -= more;
        params.resize(record.ordinal + 1u);
        seen.resize(record.ordinal + 1u);
      }
      if (seen[record.ordinal]) return false;
      seen[record.ordinal] = true;
      params[record.ordinal] = {record.offset, size};
    }
    at += head.value;
  }
  // No parameter may be missing or overlap another.
  for (size_t i = 0; i < params.size(); ++i) {
    if (!seen[i] || (i > 0 && params[i].offset < params[i - 1].offset + params[i - 1].size)) return false;
  }
  return true;
}

// --- PTX ---

std::optional<uint32_t> number(std::string_view word) {
  uint64_t value = 0;
  const bool hex = word.size() > 2 && word[0] == '0' && (word[1] == 'x' || word[1] == 'X');
  if (hex) word.remove_prefix(2);
  if (word.empty()) return std::nullopt;
  for (char c : word) {
    const uint32_t digit = c >= '0' && c <= '9'          ? static_cast<uint32_t>(c - '0')
                           : hex && c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                           : hex && c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                                         : 99;
    if (digit == 99) {
      if (c == 'U' && &c == &word.back()) break;
      return std::nullopt;
    }
    value = value * (hex ? 16 : 10) + digit;
    if (value > kMaxParamBytes) return std::nullopt;
  }
  return static_cast<uint32_t>(value);
}

// Reads from behind ".param" to the next ',' or ')', which is stored in `end`.
bool read_param(Tokens& tokens, uint32_t& offset, KernelParam& param, std::string_view& end) {
  uint64_t size = 0;
  uint32_t alignment = 0;
  bool named = false;
  bool of_pointer = false;  // ".ptr .global .align 4" describes the memory pointed to
  for (std::string_view token = tokens.next(); !token.empty(); token = tokens.next()) {
    if (token == "," || token == ")") {
      if (size == 0 || size > kMaxParamBytes || !named) return false;
      if (alignment == 0) return false;
      offset = (offset + alignment - 1) / alignment * alignment;
      if (offset + size > kMaxParamBytes) return false;
      param = {offset, static_cast<uint32_t>(size)};
      offset += param.size;
      end = token;
      return true;
    }
    if (token == ".v2" || token == ".v4") return false;  // CUDA has no vector parameters; they are arrays
    if (token == ".ptr") {
      of_pointer = true;
    } else if (token == ".align") {
      const std::optional<uint32_t> bytes = number(tokens.next());
      if (!bytes || *bytes == 0 || (*bytes & (*bytes - 1)) != 0) return false;
      if (!of_pointer) alignment = *bytes;
    } else if (token == "[") {
      const std::optional<uint32_t> count = number(tokens.next());
      if (!count || tokens.next() != "]") return false;
      size *= *count;
      if (size > kMaxParamBytes) return false;
    } else if (token[0] == '.') {
      const uint32_t bytes = type_size(token);
      if (bytes == 0) continue;  // .const, .global, ... after .ptr
      size = bytes;
      if (alignment == 0) alignment = bytes;
    } else if (is_word(token[0]) && !named) {
      named = true;
    } else {
      return false;
    }
  }
  return false;
}

bool read_entry(Tokens& tokens, KernelLayout& kernel) {
  kernel.name = tokens.next();
  if (kernel.name.empty() || !is_word(kernel.name[0])) return false;
  std::string_view token = tokens.next();
  if (token != "(") return !token.empty();  // no list: no parameters
  uint32_t offset = 0;
  token = tokens.next();
  if (token == ")") return true;
  for (;;) {
    if (token != ".param" || !read_param(tokens, offset, kernel.params.emplace_back(), token)) return false;
    if (token == ")") break;
    token = tokens.next();
  }
  return true;
}

}  // namespace

CUresult kernels_of_cubin(ByteSpan cubin, std::vector<KernelLayout>& kernels) {
  constexpr std::string_view kPrefix = ".nv.info.";
  constexpr size_t kMaxNameBytes = 65536;  // keeps many sections from sharing one very long name
  CubinSections sections;
  if (!sections.open(cubin)) return CUDA_ERROR_INVALID_IMAGE;
  uint64_t budget = cubin.size() / (4 + sizeof(ParamRecord));
  for (uint32_t i = 0; i < sections.count(); ++i) {
    Elf64_Shdr section;
    if (!sections.at(i, section)) return CUDA_ERROR_INVALID_IMAGE;
    const std::optional<std::string_view> name = sections.name(section, kMaxNameBytes);
    if (!name) return CUDA_ERROR_INVALID_IMAGE;
    if (!name->starts_with(kPrefix)) continue;
    const size_t end = name->find('\0');
    const std::optional<ByteSpan> info = sections.contents(section);
    if (end == std::string_view::npos || !info) return CUDA_ERROR_INVALID_IMAGE;
    KernelLayout& kernel = kernels.emplace_back();
    kernel.name = name->substr(kPrefix.size(), end - kPrefix.size());
    if (!read_info(*info, kernel.params, budget)) return CUDA_ERROR_INVALID_IMAGE;
  }
  return CUDA_SUCCESS;
}

CUresult kernels_of_ptx(std::string_view ptx, std::vector<KernelLayout>& kernels) {
  Tokens tokens(ptx.substr(0, ptx.find('\0')));
  while (tokens.seek_entry()) {
    if (!read_entry(tokens, kernels.emplace_back())) return CUDA_ERROR_INVALID_PTX;
  }
  return CUDA_SUCCESS;
}

CUresult kernels_of_code(CodeKind kind, ByteSpan code, std::vector<KernelLayout>& kernels) {
  switch (kind) {
    case CodeKind::elf: return kernels_of_cubin(code, kernels);
    case CodeKind::ptx:
      return kernels_of_ptx({reinterpret_cast<const char*>(code.data()), code.size()}, kernels);
    case CodeKind::other: break;
  }
  return CUDA_ERROR_INVALID_IMAGE;
}

}  // namespace gpupool::cuda
