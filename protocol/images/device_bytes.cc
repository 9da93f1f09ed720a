#include "protocol/images/device_bytes.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "protocol/images/linked_cubin.h"
#include "protocol/images/ptx_tokens.h"

namespace gpupool::cuda {
namespace {

uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t cubin_bytes(ByteSpan cubin) {
  Elf64_Ehdr head;
  if (!read_at(cubin, 0, head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != ELFCLASS64)
    return 0;
  Elf64_Shdr names{};
  if (head.e_shoff > cubin.size() ||
      !read_at(cubin, head.e_shoff + uint64_t{head.e_shstrndx} * sizeof names, names))
    return 0;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < head.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!read_at(cubin, head.e_shoff + i * sizeof section, section)) break;
    if ((section.sh_flags & SHF_ALLOC) == 0) continue;
    // Shared memory is on the chip.
    constexpr std::string_view kShared = ".nv.shared";
    char name[kShared.size()];
    const uint64_t at = plus(names.sh_offset, section.sh_name);
    if (read_at(cubin, at, name) && std::string_view(name, sizeof name) == kShared) continue;
    sum = plus(sum, section.sh_size);
  }
  return sum;
}

// Parses an array's length in PTX: decimal, hexadecimal or octal. Invalid text counts as 1; the compiler will
// reject it.
uint64_t length(std::string_view word) {
  if (!word.empty() && word.back() == 'U') word.remove_suffix(1);
  int base = 10;
  if (word.size() > 2 && word[0] == '0' && (word[1] == 'x' || word[1] == 'X')) {
    base = 16;
    word.remove_prefix(2);
  } else if (word.size() > 1 && word[0] == '0') {
    base = 8;
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  if (error == std::errc::result_out_of_range) return UINT64_MAX;
  return error == std::errc() && end == word.data() + word.size() ? value : 1;
}

// Reads from behind ".global" or ".const" to the next ';': one or more variables of one type. Returns their
// bytes.
uint64_t variables_bytes(Tokens& tokens) {
  uint64_t sum = 0, element = 0, count = 1, initialised = 1;
  bool open_array = false, in_value = false;
  int depth = 0;
  const auto finish = [&] {
    sum = plus(sum, times(element, open_array ? times(count, initialised) : count));
  };
  for (std::string_view token = tokens.next(); !token.empty(); token = tokens.next()) {
    if (token == "{") ++depth;
    if (token == "}" && depth > 0) --depth;
    if (depth > 0) {
      if (token == ",") initialised = plus(initialised, 1);
    } else if (token == ";") {
      finish();
      return sum;
    } else if (token == ",") {  // ".global .u32 a, b[3];"
      finish();
      count = initialised = 1;
      open_array = in_value = false;
    } else if (token == "=") {
      in_value = true;
    } else if (in_value) {
      continue;
    } else if (token == ".align") {
      tokens.next();
    } else if (token == ".v2" || token == ".v4") {
      count = times(count, token == ".v2" ? 2 : 4);
    } else if (token == "[") {
      const std::string_view size = tokens.next();
      if (size == "]")
        open_array = true;
      else
        count = times(count, length(size));
    } else if (const uint32_t bytes = type_size(token)) {
      element = bytes;
    }
  }
  return sum;
}

uint64_t ptx_bytes(std::string_view ptx) {
  Tokens tokens(ptx);
  uint64_t sum = 0;
  int braces = 0, parentheses = 0;
  bool external = false, section = false;  // in a debug section, which stays on the host
  const char* body = nullptr;              // start of the current function's body
  bool starts = true;                      // at the start of a statement
  for (std::string_view token = tokens.next(); !token.empty(); token = tokens.next()) {
    if (is_word(token.front())) {  // most tokens are words
      starts = false;
      continue;
    }
    const bool may_declare = parentheses == 0 && (braces == 0 || starts);
    if (may_declare && (token == ".global" || token == ".const")) {
      const uint64_t bytes = variables_bytes(tokens);
      if (!external) sum = plus(sum, bytes);
      external = false;
      starts = true;
      continue;
    }
    starts =
        token == ";" || token == "{" || token == "}" ||
        (starts && (token == ".visible" || token == ".weak" || token == ".common" || token == ".extern"));
    if (token == ".extern")
      external = true;
    else if (token == ";" || token == ".entry" || token == ".func")
      external = false;
    else if (token == ".section")
      section = braces == 0;
    else if (token == "{") {
      if (++braces == 1 && !section) body = token.data();
    } else if (token == "}") {
      braces -= braces > 0;
      if (braces != 0) continue;
      if (body) sum = plus(sum, static_cast<uint64_t>(token.data() - body));
      body = nullptr;
      section = false;
    } else if (token == "(")
      ++parentheses;
    else if (token == ")")
      parentheses -= parentheses > 0;
  }
  return sum;
}

std::vector<const ImageEntry*> selected(const Image& image, const CodeTarget& target) {
  CodeSelection selection;
  if (select_code(image, target, selection) != CUDA_SUCCESS) return {};
  return std::move(selection.entries);
}

bool names_launches(ByteSpan code) {
  const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
  return text.find("LaunchDevice") != text.npos;  // cudaLaunchDeviceV2, __cudaCDP2LaunchDevice ...
}

DeviceUse use_of(const std::vector<const ImageEntry*>& entries) {
  DeviceUse use;
  for (const ImageEntry* const entry : entries) {
    Bytes code;
    if (unpack_entry(*entry, code) != CUDA_SUCCESS) continue;
    use.bytes = plus(use.bytes, device_bytes(entry->kind, code.view()));
    use.launches_kernels |= names_launches(code.view());
  }
  return use;
}

}  // namespace

uint64_t device_bytes(CodeKind kind, ByteSpan code) {
  switch (kind) {
    case CodeKind::elf: {
      uint64_t sum = cubin_bytes(code);
      for (const std::string_view text : texts_of_linked_cubin(code)) sum = plus(sum, ptx_bytes(text));
      return sum;
    }
    case CodeKind::ptx: return ptx_bytes({reinterpret_cast<const char*>(code.data()), code.size()});
    case CodeKind::other: break;
  }
  return 0;
}

DeviceUse device_use(const Image& image, int major, int minor) {
  const auto any = selected(image, {major, minor, false}), ptx = selected(image, {major, minor, true});
  const DeviceUse compiled = use_of(ptx);
  if (any == ptx) return compiled;
  const DeviceUse use = use_of(any);
  return {std::max(use.bytes, compiled.bytes), use.launches_kernels || compiled.launches_kernels};
}

}  // namespace gpupool::cuda
