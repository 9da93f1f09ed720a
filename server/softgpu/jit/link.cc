#include "server/softgpu/jit/link.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "server/softgpu/jit/builtins.h"

namespace gpupool::softgpu {
namespace {

using ptx::Linkage;
using ptx::Space;

constexpr uint32_t kNewestVersionMajor = 9;
constexpr uint64_t kMaxDataBytes = 1ull << 36;
constexpr uint64_t kMaxSharedBytes = 227 * 1024;  // maximum per block on a data-centre GPU
constexpr uint64_t kMaxLocalBytes = 512 * 1024;   // per thread; CUDA's limit
constexpr uint64_t kMaxParameterBytes = 32764;    // PTX ISA 8.1 and later
constexpr uint64_t kMaxReached = 10'000'000;      // functions reached by kernels, summed over the kernels
constexpr uint32_t kDynamicSharedAlignment = 16;
constexpr uint64_t kMaxRegisters = 255;  // per thread
constexpr uint64_t kRegistersPerBlock = 64 * 1024;
constexpr uint64_t kExtraRegisters = 6;  // estimate of ptxas's own registers for addresses and counters

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}
std::string name_for_message(std::string_view function, bool is_kernel) {
  return (is_kernel ? "kernel " : "function ") + std::string(function.substr(0, 200));
}
// Returns the line of the first call.
uint32_t line_of_call(const ptx::Function& f, std::string_view callee) {
  for (const ptx::Instruction& i : f.code)
    for (const ptx::Operand& operand : f.operands(i))
      if (i.opcode == "call" && operand.kind == ptx::Operand::Kind::symbol && operand.name == callee)
        return i.line;
  return f.line;
}
bool is_static_storage(Space space) {
  return space == Space::global || space == Space::constant || space == Space::shared;
}

}  // namespace

class Linker {
 public:
  Linker(Image& image, const CompileOptions& options) : image_(image), options_(options) {}

  void run(std::span<const std::string_view> texts) {
    image_.texts.assign(texts.begin(), texts.end());
    image_.files.reserve(texts.size());
    image_.local_.resize(texts.size());
    for (uint32_t i = 0; i < texts.size(); ++i) parse_file(i);
    for (uint32_t i = 0; i < texts.size(); ++i) add_symbols(i);
    for (auto& function : image_.functions) add_function_variables(function);
    place_data();
    mark_addresses();
    for (uint32_t i = 0; i < image_.functions.size(); ++i)
      if (image_.functions[i].tree->is_kernel) add_kernel(i);
  }

 private:
  [[noreturn]] void fail(CompileErrorCode code, std::string message) {
    throw CompileError{code, std::move(message)};
  }
  std::string at(uint32_t file, uint32_t line) { return " (" + image_.where(file, line) + ")"; }
  std::string at(const LinkedFunction& function, uint32_t line) {
    return " (" + image_.where(function, line) + ")";
  }

  void parse_file(uint32_t index) {
    auto result = ptx::parse(image_.texts[index]);
    image_.files.emplace_back();
    if (auto* error = std::get_if<ptx::SyntaxError>(&result))
      fail(CompileErrorCode::invalid_ptx,
           error->message + " (" +
               (error->function.empty() ? "" : name_for_message(error->function, error->in_kernel) + ", ") +
               image_.where(index, error->line) + ")");
    ptx::File& file = image_.files.back() = std::move(std::get<ptx::File>(result));
    if (file.version_major > kNewestVersionMajor)
      fail(CompileErrorCode::unsupported_ptx_version, "PTX version " + std::to_string(file.version_major) +
                                                          "." + std::to_string(file.version_minor) +
                                                          " is newer than supported");
    if (file.target > options_.compute_capability)
      fail(CompileErrorCode::unsupported_ptx_version,
           "PTX for sm_" + std::to_string(file.target) + " does not run on a device of compute capability " +
               std::to_string(options_.compute_capability / 10) + "." +
               std::to_string(options_.compute_capability % 10));
  }

  // Records a definition according to its linkage; returns true if it is kept.
  bool define(uint32_t file, std::string_view name, Linkage linkage, Symbol symbol, uint32_t line) {
    if (linkage == Linkage::internal) {
      auto [it, fresh] = image_.local_[file].emplace(name, symbol);
      if (!fresh)
        fail(CompileErrorCode::invalid_ptx, "'" + std::string(name) + "' is defined twice" + at(file, line));
      return true;
    }
    auto [it, fresh] = image_.global_.emplace(name, symbol);
    bool weak = linkage == Linkage::weak || linkage == Linkage::common;
    if (fresh) {
      if (weak) weak_.emplace(name, true);
      return true;
    }
    if (weak) return false;
    if (weak_.erase(name) == 0)
      fail(CompileErrorCode::invalid_ptx, "'" + std::string(name) + "' is defined twice" + at(file, line));
    it->second = symbol;
    return true;
  }

  // Where NVIDIA's device runtime is included as PTX, it needs NVIDIA's firmware; softgpu's functions replace
  // it.
  static bool is_device_runtime(const ptx::File& file) {
    return std::any_of(file.functions.begin(), file.functions.end(), [](const ptx::Function& f) {
      return f.has_body && f.linkage == Linkage::visible && is_device_runtime_name(f.name) &&
             find_builtin(f.name);
    });
  }

  void add_symbols(uint32_t index) {
    const ptx::File& file = image_.files[index];
    if (is_device_runtime(file)) return;
    // A declaration may have a linkage that the definition omits.
    std::unordered_map<std::string_view, Linkage> declared;
    for (const ptx::Function& f : file.functions)
      if (!f.has_body && f.linkage != Linkage::internal && f.linkage != Linkage::external)
        declared.emplace(f.name, f.linkage);
    for (const ptx::Function& f : file.functions) {
      if (!f.has_body) continue;
      Linkage linkage = f.linkage == Linkage::external ? Linkage::visible : f.linkage;
      if (auto it = declared.find(f.name); linkage == Linkage::internal && it != declared.end())
        linkage = it->second;
      Symbol symbol{Symbol::Kind::function, static_cast<uint32_t>(image_.functions.size())};
      if (!define(index, f.name, linkage, symbol, f.line)) continue;
      LinkedFunction function;
      function.tree = &f;
      function.file = index;
      function.facts = analyse(f, options_.converge_warps);
      image_.functions.push_back(std::move(function));
    }
    for (const ptx::Variable& v : file.variables) {
      bool dynamic = v.space == Space::shared && v.linkage == Linkage::external;
      if (v.linkage == Linkage::external && !dynamic) continue;
      // The extern arrays of all files are the same window.
      Linkage linkage = dynamic ? Linkage::weak : v.linkage;
      Symbol symbol = add_variable(index, v, dynamic);
      if (!define(index, v.name, linkage, symbol, v.line)) drop_last(symbol);
    }
    for (const ptx::Alias& alias : file.aliases) image_.aliases_.emplace(alias.name, alias.target);
  }

  Symbol add_variable(uint32_t file, const ptx::Variable& v, bool dynamic) {
    if (v.space == Space::shared) {
      image_.shared.push_back({v.name, v.size, v.alignment, dynamic && v.is_unsized});
      return {Symbol::Kind::shared, static_cast<uint32_t>(image_.shared.size() - 1)};
    }
    image_.data.push_back({&v, file, 0});
    return {Symbol::Kind::data, static_cast<uint32_t>(image_.data.size() - 1)};
  }

  void drop_last(Symbol symbol) {
    if (symbol.kind == Symbol::Kind::shared)
      image_.shared.pop_back();
    else
      image_.data.pop_back();
  }

  void add_function_variables(LinkedFunction& function) {
    uint64_t local_bytes = 0;
    for (uint32_t i = 0; i < function.tree->variables.size(); ++i) {
      const ptx::Variable& v = function.tree->variables[i];
      if (is_static_storage(v.space)) {
        function.variables.emplace(i, add_variable(function.file, v, v.linkage == Linkage::external));
      } else if (v.space != Space::reg) {
        local_bytes += align_up(v.size, v.alignment);
        if (v.size > kMaxLocalBytes || local_bytes > kMaxLocalBytes * 2)
          fail(CompileErrorCode::invalid_ptx,
               "'" + std::string(v.name) + "' makes local memory too large" + at(function, v.line));
      }
    }
  }

  void place_data() {
    uint64_t offset = 0;
    for (DataVariable& data : image_.data) {
      offset = align_up(offset, data.tree->alignment);
      data.offset = offset;
      offset += std::max<uint64_t>(data.tree->size, 1);
      if (offset > kMaxDataBytes) fail(CompileErrorCode::invalid_ptx, "global variables are too large");
      image_.data_alignment = std::max<uint64_t>(image_.data_alignment, data.tree->alignment);
    }
    image_.data_bytes = offset;
  }

  void mark_addresses() {
    auto mark = [&](uint32_t file, std::string_view name) {
      Symbol symbol = image_.resolve(file, name);
      if (symbol.kind == Symbol::Kind::function) image_.functions[symbol.index].address_taken = true;
      return symbol.kind;
    };
    for (const LinkedFunction& function : image_.functions)
      for (std::string_view name : function.facts.referenced) mark(function.file, name);
    for (const DataVariable& data : image_.data)
      for (const ptx::Initialiser& value : data.tree->initialisers) {
        if (value.kind != ptx::Initialiser::Kind::symbol) continue;
        Symbol::Kind kind = mark(data.file, value.symbol);
        if (kind != Symbol::Kind::function && kind != Symbol::Kind::data)
          fail(CompileErrorCode::unresolved_symbol, "'" + std::string(value.symbol) +
                                                        "' in an initialiser is undefined" +
                                                        at(data.file, data.tree->line));
      }
  }

  // Collects all functions that the kernel can reach, in any order, the kernel first.
  void collect_functions(LinkedKernel& kernel) {
    std::vector<bool> seen(image_.functions.size(), false);
    bool indirect = false;
    auto add = [&](uint32_t index) {
      if (seen[index]) return;
      seen[index] = true;
      if (++reached_ > kMaxReached)
        fail(CompileErrorCode::invalid_ptx, "the kernels reach too many functions");
      kernel.functions.push_back(index);
    };
    add(kernel.function);
    for (size_t i = 0; i < kernel.functions.size(); ++i) {
      const LinkedFunction& function = image_.functions[kernel.functions[i]];
      for (std::string_view name : function.facts.callees) {
        Symbol symbol = image_.resolve(function.file, name);
        if (symbol.kind == Symbol::Kind::undefined)
          fail(CompileErrorCode::unresolved_symbol,
               (is_device_runtime_name(name)
                    ? "the device runtime's " + std::string(name.substr(0, 200)) + " is not supported"
                    : "function '" + std::string(name.substr(0, 200)) + "' is undefined") +
                   at(function, line_of_call(*function.tree, name)));
        if (symbol.kind == Symbol::Kind::function) add(symbol.index);
        if (symbol.kind == Symbol::Kind::builtin)
          image_.uses_device_runtime |= is_device_runtime_name(builtins()[symbol.index].name);
      }
      if (function.facts.has_indirect_call && !indirect) {
        indirect = true;
        for (uint32_t f = 0; f < image_.functions.size(); ++f)
          if (image_.functions[f].address_taken && !image_.functions[f].tree->is_kernel) add(f);
      }
    }
  }

  // Returns the variables of this kind used by the kernel and all functions it reaches, sorted and without
  // duplicates.
  std::vector<uint32_t> variables_used(const LinkedKernel& kernel, Symbol::Kind kind) {
    std::vector<uint32_t> used;
    for (uint32_t index : kernel.functions) {
      const LinkedFunction& function = image_.functions[index];
      auto add = [&](Symbol symbol) {
        if (symbol.kind == kind) used.push_back(symbol.index);
      };
      for (std::string_view name : function.facts.referenced) add(image_.resolve(function.file, name));
      for (uint32_t variable : function.facts.used_variables)
        if (auto it = function.variables.find(variable); it != function.variables.end()) add(it->second);
    }
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    return used;
  }

  void count_constants(LinkedKernel& kernel) {
    uint64_t bytes = 0;
    for (const uint32_t index : variables_used(kernel, Symbol::Kind::data)) {
      const ptx::Variable& variable = *image_.data[index].tree;
      if (variable.space == Space::constant) bytes = align_up(bytes, variable.alignment) + variable.size;
    }
    kernel.info.constant_bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX));
  }

  void place_shared(LinkedKernel& kernel) {
    const std::vector<uint32_t> used = variables_used(kernel, Symbol::Kind::shared);
    uint64_t offset = 0;
    bool dynamic = false;
    uint64_t dynamic_alignment = kDynamicSharedAlignment;
    for (uint32_t index : used) {
      const SharedVariable& variable = image_.shared[index];
      if (variable.is_dynamic) {
        dynamic = true;
        dynamic_alignment = std::max<uint64_t>(dynamic_alignment, variable.alignment);
        continue;
      }
      offset = align_up(offset, variable.alignment);
      kernel.shared_offsets[index] = static_cast<uint32_t>(offset);
      offset += variable.size;
      if (offset > kMaxSharedBytes)
        fail(CompileErrorCode::invalid_ptx,
             "too much shared memory" +
                 at(image_.functions[kernel.function], image_.functions[kernel.function].tree->line));
    }
    for (uint32_t index : kernel.functions)
      if (image_.functions[index].facts.uses_reserved_shared && !kernel.reserved_shared) {
        kernel.reserved_shared = static_cast<uint32_t>(align_up(std::max<uint64_t>(offset, 1), 128));
        offset = kernel.reserved_shared + kReservedSharedBytes;
      }
    if (dynamic) offset = align_up(offset, dynamic_alignment);
    for (uint32_t index : used)
      if (image_.shared[index].is_dynamic) kernel.shared_offsets[index] = static_cast<uint32_t>(offset);
    kernel.info.static_shared_bytes = static_cast<uint32_t>(offset);
  }

  void place_parameters(LinkedKernel& kernel, const ptx::Function& f) {
    uint64_t offset = 0;
    for (const ptx::Variable& v : f.parameters) {
      offset = align_up(offset, v.alignment);
      if (v.size > kMaxParameterBytes || offset + v.size > kMaxParameterBytes)
        fail(CompileErrorCode::invalid_ptx,
             "too many parameters" + at(image_.functions[kernel.function], v.line));
      kernel.info.parameters.push_back(
          {static_cast<uint32_t>(offset), static_cast<uint32_t>(v.size), v.alignment});
      offset += v.size;
    }
    kernel.info.parameter_bytes = static_cast<uint32_t>(offset);
  }

  void add_kernel(uint32_t index) {
    const ptx::Function& f = *image_.functions[index].tree;
    LinkedKernel kernel;
    kernel.function = index;
    kernel.info.name = f.name;
    kernel.info.ptx_target = image_.files[image_.functions[index].file].target;
    collect_functions(kernel);
    place_shared(kernel);
    count_constants(kernel);
    place_parameters(kernel, f);
    uint64_t local = 0, registers = 0;
    for (uint32_t reached : kernel.functions) {
      const LinkedFunction& function = image_.functions[reached];
      for (const ptx::Variable& v : function.tree->variables)
        if (v.space == Space::local) local += align_up(v.size, v.alignment);
      registers = std::max<uint64_t>(registers, function.facts.live_registers);
      // `exit` in a called function leaves through the executor, which requires a fiber.
      kernel.info.synchronises |=
          function.facts.synchronises || (reached != index && function.facts.has_exit);
    }
    kernel.info.local_bytes = static_cast<uint32_t>(std::min<uint64_t>(local, UINT32_MAX));
    uint64_t threads = uint64_t{f.max_block[0]} * f.max_block[1] * f.max_block[2];
    if (f.max_block[0] && threads < kMaxThreadsPerBlock)
      kernel.info.max_threads = static_cast<uint32_t>(threads);
    kernel.info.required_block = f.required_block;
    kernel.info.required_cluster = f.required_cluster;
    kernel.info.needs_cluster = f.needs_cluster;
    kernel.info.blocks_are_clusters = f.blocks_are_clusters && f.required_cluster[0] != 0;
    uint64_t required = uint64_t{f.required_block[0]} * f.required_block[1] * f.required_block[2];
    if (f.required_block[0] && required <= kMaxThreadsPerBlock)
      kernel.info.max_threads = static_cast<uint32_t>(required);
    estimate_registers(kernel, f, image_.files[image_.functions[index].file].max_registers, registers);
    image_.kernels.push_back(std::move(kernel));
  }

  // Estimates the registers that ptxas would allocate, limited by the declared block size or by the maximum
  // per thread.
  void estimate_registers(LinkedKernel& kernel, const ptx::Function& f, uint32_t file_limit, uint64_t live) {
    uint64_t most = kMaxRegisters;
    if (f.max_block[0] || f.required_block[0])
      most =
          std::clamp<uint64_t>(kRegistersPerBlock / std::max(kernel.info.max_threads, 1u) / 8 * 8, 16, most);
    for (const uint32_t limit : {f.max_registers, file_limit})
      if (limit) most = std::min<uint64_t>(most, limit);
    kernel.info.registers =
        static_cast<uint32_t>(std::clamp<uint64_t>(live + kExtraRegisters, 1, std::max<uint64_t>(most, 1)));
  }

  Image& image_;
  const CompileOptions& options_;
  std::unordered_map<std::string_view, bool> weak_;
  uint64_t reached_ = 0;
};

std::string Image::where(const LinkedFunction& function, uint32_t line) const {
  return name_for_message(function.tree->name, function.tree->is_kernel) + ", " + where(function.file, line);
}

std::string Image::where(uint32_t file, uint32_t line) const {
  std::string text = "line " + std::to_string(line);
  return texts.size() > 1 ? "file " + std::to_string(file) + ", " + text : text;
}

Symbol Image::resolve(uint32_t file, std::string_view name) const {
  for (int hops = 0; hops < 8; ++hops) {
    if (auto it = local_[file].find(name); it != local_[file].end()) return it->second;
    if (auto it = global_.find(name); it != global_.end()) return it->second;
    auto alias = aliases_.find(name);
    if (alias == aliases_.end()) break;
    name = alias->second;
  }
  const auto builtin = find_builtin(name);
  return builtin ? Symbol{Symbol::Kind::builtin, *builtin} : Symbol{};
}

std::optional<uint64_t> Image::address_of(uint32_t file, std::string_view name, uint64_t address) const {
  Symbol symbol = resolve(file, name);
  if (symbol.kind == Symbol::Kind::data) return address + data[symbol.index].offset;
  if (symbol.kind == Symbol::Kind::function)
    return kFunctionAddressBase + kFunctionAddressStep * symbol.index;
  return std::nullopt;
}

void Image::write_data(std::span<std::byte> image, uint64_t address) const {
  if (image.size() < data_bytes) return;
  std::memset(image.data(), 0, data_bytes);
  for (const DataVariable& variable : data) {
    uint32_t bytes = ptx::bytes_of(variable.tree->type);
    std::byte* to = image.data() + variable.offset;
    for (const ptx::Initialiser& value : variable.tree->initialisers) {
      uint64_t bits = value.value;
      if (value.kind == ptx::Initialiser::Kind::symbol) {
        bits += address_of(variable.file, value.symbol, address).value_or(0);
        if (value.mask) bits = (bits & value.mask) >> std::countr_zero(value.mask);
      } else if (value.kind == ptx::Initialiser::Kind::real) {
        if (variable.tree->type == ptx::Type::f32 && !value.is_single)
          bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(value.value)));
        else if (variable.tree->type == ptx::Type::f64 && value.is_single)
          bits = std::bit_cast<uint64_t>(
              static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(value.value))));
      } else if (variable.tree->type == ptx::Type::f32) {
        bits = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int64_t>(value.value)));
      } else if (variable.tree->type == ptx::Type::f64) {
        bits = std::bit_cast<uint64_t>(static_cast<double>(static_cast<int64_t>(value.value)));
      }
      std::memcpy(to, &bits, std::min<uint32_t>(bytes, sizeof bits));
      to += bytes;
    }
  }
}

std::variant<std::shared_ptr<const Image>, CompileError> link(std::span<const std::string_view> texts,
                                                              const CompileOptions& options) {
  auto image = std::make_shared<Image>();
  try {
    Linker(*image, options).run(texts);
  } catch (CompileError& error) {
    return std::move(error);
  }
  return std::shared_ptr<const Image>(std::move(image));
}

}  // namespace gpupool::softgpu
