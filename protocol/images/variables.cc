#include "protocol/images/variables.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "protocol/images/cubin_sections.h"
#include "protocol/images/linked_cubin.h"
#include "protocol/images/ptx_tokens.h"

namespace gpupool::cuda {
namespace {

// In machine code, all of them are left undefined for the driver or the device runtime to provide. The names
// with underscores are operator new with a large alignment (CUDA 12 and later, before), and the device
// runtime's functions since CUDA 12.
bool is_heap_function(std::string_view name) {
  constexpr std::string_view kNames[] = {"malloc",
                                         "free",
                                         "__cuda_syscall_aligned_malloc",
                                         "__nv_aligned_device_malloc_impl",
                                         "cudaMalloc",
                                         "cudaFree",
                                         "__cudaCDP2Malloc",
                                         "__cudaCDP2Free"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}
constexpr size_t kLongestHeapFunction = 64;

// String literals, __func__, and tables of mathematical functions, as nvcc and NVRTC of CUDA 11 to 13 name
// them in each file.
bool is_compiler_made(std::string_view name) {
  return name.starts_with("$str") || name.starts_with("__unnamed_") || name.starts_with("__cudart_");
}

// Adds variables of one module, whose code may be in several texts.
class Collector {
 public:
  explicit Collector(ModuleVariables& found) : found_(found) { found_ = {}; }

  // `global`: visible to other files of the module, so that all definitions are the same variable. False:
  // more than the limits.
  bool add(std::string_view name, ModuleVariable variable, bool global) {
    if (name.size() >= bytes_left_) return false;
    bytes_left_ -= name.size() + 1;
    const auto known = found_.by_name.find(name);
    if (known == found_.by_name.end()) {
      if (found_.by_name.size() == kMaxModuleVariables) return false;
      const auto added = found_.by_name.emplace(name, variable).first;
      if (!global) internal_.insert(added->first);
      return true;
    }
    if (!global || internal_.contains(name)) known->second.repeated = !is_compiler_made(name);
    known->second.managed |= variable.managed;
    return true;
  }
  void note_function(std::string_view name) { found_.uses_heap |= is_heap_function(name); }

 private:
  ModuleVariables& found_;
  std::unordered_set<std::string_view> internal_;  // views of keys of the map
  uint64_t bytes_left_ = kMaxVariableNameBytes;
};

// --- PTX ---

class PtxReader {
 public:
  PtxReader(std::string_view text, Collector& out) : tokens_(text), out_(out) {}

  // False: a declaration cannot be parsed, or there are more variables than the limits.
  bool read() {
    for (std::string_view token = tokens_.next(); !token.empty(); token = tokens_.next()) {
      if (is_word(token.front())) {  // most tokens are words
        if (braces_ > 0) out_.note_function(token);
        statement_starts_ = false;
        end_ = token.data() + token.size();
        continue;
      }
      // ".global" is also a part of instructions, and of parameters' types.
      const bool may_declare = parentheses_ == 0 && (braces_ == 0 || statement_starts_ ||
                                                     (after_line_number_ && token.data() != end_));
      if (may_declare && (token == ".global" || token == ".const")) {
        if (!read_declaration(token == ".const")) return false;
        external_ = global_ = after_line_number_ = false;
        statement_starts_ = true;
      } else {
        track(token);
      }
      end_ = token.data() + token.size();
    }
    return true;
  }

 private:
  void track(std::string_view token) {
    const bool linkage = token == ".visible" || token == ".weak" || token == ".common" || token == ".extern";
    const bool ends = token == ";" || token == "{" || token == "}" || token == ":";  // ':' ends a label
    if (linkage) {
      (token == ".extern" ? external_ : global_) = true;
    } else if (ends || token == ".entry" || token == ".func") {
      external_ = global_ = false;
    }
    // A line number ends without a mark: ".loc 1 20 3 .global .u32 a;" and ".loc 1 20 3 ld.global.u32 a,
    // [b];".
    after_line_number_ = !ends && (after_line_number_ || (statement_starts_ && token == ".loc"));
    statement_starts_ = ends || (statement_starts_ && linkage);
    if (token == "{") ++braces_;
    if (token == "}") braces_ -= braces_ > 0;
    if (token == "(") ++parentheses_;
    if (token == ")") parentheses_ -= parentheses_ > 0;
  }

  // Reads from behind ".global" or ".const" to the ';': one or more variables of one type, as in
  // ".align 4 .u32 a, b[3] = {1, 2}, c = generic(a)+4;".
  bool read_declaration(bool constant) {
    ModuleVariable variable{constant, false, false};
    bool reference = false, in_value = false;
    int64_t depth = 0;  // of brackets of all kinds
    std::string_view name;
    for (std::string_view token = tokens_.next(); !token.empty(); token = tokens_.next()) {
      const char first = token.front();
      if (depth == 0 && (first == ',' || first == ';')) {
        if (name.empty()) return false;
        if (!external_ && !reference && !out_.add(name, variable, global_)) return false;
        if (first == ';') return true;
        name = {};
        in_value = false;
      } else if (first == '{' || first == '(' || first == '[') {
        ++depth;
      } else if (first == '}' || first == ')' || first == ']') {
        if (--depth < 0) return false;
      } else if (in_value) {
        if (is_word(first)) out_.note_function(token);  // in a table of functions
      } else if (depth != 0) {
        variable.managed |= token == ".managed";  // .attribute(.managed)
      } else if (first == '=') {
        in_value = true;
      } else if (!name.empty() || !(first == '.' || is_word(first))) {
        return false;  // including "a<10>", several variables that compilers declare only as registers
      } else if (first == '.') {
        reference |= token == ".texref" || token == ".surfref" || token == ".samplerref";
      } else if (first < '0' || first > '9') {  // not the number after .align
        name = token;
      }
    }
    return false;
  }

  Tokens tokens_;
  Collector& out_;
  uint64_t braces_ = 0, parentheses_ = 0;
  bool statement_starts_ = true, after_line_number_ = false;
  const char* end_ = nullptr;               // of the previous token
  bool external_ = false, global_ = false;  // linkage of the current declaration
};

CUresult read_ptx(std::string_view text, Collector& out) {
  return PtxReader(text.substr(0, text.find('\0')), out).read() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

// --- cubins ---

// A data object in code that was compiled to be linked, where STT_OBJECT is not used; the flags of st_other
// say where it is.
constexpr uint8_t kTypeCudaObject = 13;
constexpr uint8_t kOtherManaged = 0x04;
constexpr uint8_t kOtherSpaces = 0xe0, kOtherGlobal = 0x20, kOtherConstant = 0x80;

enum class Holds : uint8_t { others, variables, constants };

Holds contents_of(std::string_view section) {
  const auto is = [&](std::string_view name) {
    return section.starts_with(name) && section.size() > name.size() &&
           (section[name.size()] == '\0' || section[name.size()] == '.');
  };
  if (is(".nv.global")) return Holds::variables;  // and .nv.global.init
  if (is(".nv.constant3")) return Holds::constants;
  return Holds::others;
}

class CubinReader {
 public:
  explicit CubinReader(Collector& out) : out_(out) {}

  // False: the cubin is broken, or has more variables than the limits.
  bool read(ByteSpan cubin) {
    constexpr size_t kPrefix = 32;  // bytes of a section's name that contents_of() looks at, and more
    if (!sections_.open(cubin)) return false;
    std::optional<Elf64_Shdr> table;
    for (uint32_t i = 0; i < sections_.count(); ++i) {
      Elf64_Shdr section;
      if (!sections_.at(i, section)) return false;
      const std::optional<std::string_view> name = sections_.name(section, kPrefix);
      if (!name) return false;
      holds_.push_back(contents_of(*name));
      if (section.sh_type != SHT_SYMTAB) continue;
      // ELF allows one. Several of the same bytes would multiply the work.
      if (table) return false;
      table = section;
    }
    return table && read_symbols(*table);
  }

 private:
  bool read_symbols(const Elf64_Shdr& table) {
    Elf64_Shdr section;
    if (table.sh_link >= sections_.count() || !sections_.at(table.sh_link, section)) return false;
    const std::optional<std::string_view> names = sections_.text(section);
    const std::optional<ByteSpan> symbols = sections_.contents(table);
    if (!names || !symbols || table.sh_entsize != sizeof(Elf64_Sym)) return false;
    Elf64_Sym symbol;
    for (uint64_t at = 0; read_at(*symbols, at, symbol); at += sizeof symbol) {
      if (symbol.st_name > names->size()) return false;
      if (!read_symbol(symbol, names->substr(symbol.st_name))) return false;
    }
    return true;
  }

  // `rest`: from the symbol's name on.
  bool read_symbol(const Elf64_Sym& symbol, std::string_view rest) {
    const uint8_t type = ELF64_ST_TYPE(symbol.st_info);
    if (type != STT_OBJECT && type != kTypeCudaObject) {
      const std::string_view name = rest.substr(0, kLongestHeapFunction);
      out_.note_function(name.substr(0, name.find('\0')));
      return true;
    }
    if (symbol.st_shndx == SHN_XINDEX) return false;  // cubins have few sections
    const Holds place = place_of(symbol);
    if (place == Holds::others) return true;
    const size_t end = rest.substr(0, kMaxVariableNameBytes).find('\0');
    if (end == 0 || end == std::string_view::npos) return false;
    return out_.add(rest.substr(0, end),
                    {place == Holds::constants, (symbol.st_other & kOtherManaged) != 0, false},
                    ELF64_ST_BIND(symbol.st_info) != STB_LOCAL);
  }

  Holds place_of(const Elf64_Sym& symbol) const {
    if (symbol.st_shndx == SHN_COMMON) {
      const uint8_t space = symbol.st_other & kOtherSpaces;
      return space == kOtherGlobal     ? Holds::variables
             : space == kOtherConstant ? Holds::constants
                                       : Holds::others;
    }
    return symbol.st_shndx < holds_.size() ? holds_[symbol.st_shndx] : Holds::others;
  }

  Collector& out_;
  CubinSections sections_;
  std::vector<Holds> holds_;  // by section
};

CUresult read_code(CodeKind kind, ByteSpan code, Collector& out) {
  const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
  if (kind == CodeKind::ptx) return read_ptx(text, out);
  if (kind != CodeKind::elf) return CUDA_ERROR_INVALID_IMAGE;
  const std::vector<std::string_view> linked = texts_of_linked_cubin(code);
  uint64_t left = code.size();
  for (const std::string_view ptx : linked) {
    if (ptx.size() > left) return CUDA_ERROR_INVALID_IMAGE;  // overlapping texts would multiply the work
    left -= ptx.size();
    if (const CUresult result = read_ptx(ptx, out); result != CUDA_SUCCESS) return result;
  }
  return !linked.empty() || CubinReader(out).read(code) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

bool is_bare(const std::vector<ImageEntry>& entries, CodeKind kind) {
  return entries.size() == 1 && entries[0].kind == kind && entries[0].record.empty();
}

// Selects the code as drivers do. They load bare PTX whatever it says; softgpu loads what its linker made,
// which is a cubin, although it executes only PTX.
CUresult select_loaded(const Image& image, CodeTarget target, CodeSelection& selection) {
  if (image.linked.empty() && is_bare(image.entries, CodeKind::ptx)) {
    selection.entries.push_back(&image.entries[0]);
    return CUDA_SUCCESS;
  }
  if (image.linked.empty() && is_bare(image.entries, CodeKind::elf) &&
      !texts_of_linked_cubin(image.entries[0].payload).empty()) {
    target.ptx_only = false;
  }
  return select_code(image, target, selection);
}

}  // namespace

CUresult variables_of_bundle(ByteSpan bytes, const CodeTarget& target, ModuleVariables& found) {
  Collector out(found);
  Bundle bundle;
  Image image;
  CodeSelection selection;
  CUresult result = bundle.parse(bytes);
  if (result == CUDA_SUCCESS) result = parse_image(bundle.spans(), image);
  if (result == CUDA_SUCCESS) result = select_loaded(image, target, selection);
  uint64_t left = kMaxUnpackedBytes;  // of all entries together, or many small ones could unpack to a lot
  for (const ImageEntry* const entry : selection.entries) {
    Bytes code;
    if (result == CUDA_SUCCESS) result = unpack_entry(*entry, code, left);
    if (result == CUDA_SUCCESS) result = read_code(entry->kind, code.view(), out);
    if (result != CUDA_SUCCESS) break;
    left -= code.view().size();
  }
  return result;
}

CUresult variables_of_code(CodeKind kind, ByteSpan code, ModuleVariables& found) {
  Collector out(found);
  return read_code(kind, code, out);
}

}  // namespace gpupool::cuda
