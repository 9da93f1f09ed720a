// The syntax tree of one PTX file, with names inside functions resolved. Made by parse(), used by jit/.
//
// All string_views point into the text given to parse(), which must outlive the tree. Operands, modifiers and
// labels of a function live in pools of the Function; instructions refer to them by index, so a tree is
// compact and copyable.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "server/softgpu/ptx/types.h"

namespace gpupool::softgpu::ptx {

enum class Linkage : uint8_t { internal, visible, weak, common, external };

// Variables of an opaque type (.texref, .surfref, .samplerref) take eight bytes, which hold the texture or
// surface value.
enum class Opaque : uint8_t { none, texture, surface, sampler };

// One element of an initialiser.
struct Initialiser {
  enum class Kind : uint8_t { integer, real, symbol };
  Kind kind = Kind::integer;
  bool is_single = false;  // real: `value` holds the bits of a float, else of a double
  uint64_t value = 0;      // integer: the value; real: its bits; symbol: offset added to the address
  uint64_t mask = 0;       // 0xFF00(symbol): the byte of the address to store; 0: the whole address
  std::string_view symbol;
};

struct Variable {
  std::string_view name;
  Space space = Space::global;
  Type type = Type::b8;
  Linkage linkage = Linkage::internal;
  Opaque opaque = Opaque::none;
  bool is_managed = false;
  bool is_unsized = false;  // extern array without a size: dynamic shared memory
  bool is_array = false;
  uint32_t alignment = 1;  // bytes
  uint64_t size = 0;       // bytes
  uint32_t reg = 0;        // register of a parameter in space reg
  uint32_t line = 0;
  std::vector<Initialiser> initialisers;  // flattened; the rest of the variable is zero

  bool is_aggregate() const { return is_array || size != bytes_of(type); }
};

struct Register {
  Type type = Type::b32;
};

struct Operand {
  enum class Kind : uint8_t {
    sink,       // _
    reg,        // index
    special,    // name (with its %), component
    integer,    // value
    real,       // value: bits of a float (is_single) or a double
    variable,   // index into Function::variables, value: offset in bytes
    symbol,     // name, value: a variable or function of the file
    label,      // index into Function::labels
    prototype,  // index into Function::prototypes
    targets,    // index into Function::target_lists
    address,    // [base + value]; first: the base (reg, variable, symbol or integer) in the pool
    fetch,      // [a, {x, y}]: first, count: the texture, surface or tensor map, then its operands
    vector,     // {a, b}: first, count
    list,       // (a, b): first, count
    pair,       // a|b: first, count 2; a may be a vector
  };
  Kind kind = Kind::sink;
  bool negated = false;  // !p
  char component = 0;    // x y z w
  bool is_single = false;
  uint32_t index = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  int64_t value = 0;
  std::string_view name;
  std::string_view part;    // part of a register in a video instruction: "b0", "h10", ...
  bool is_minus = false;    // -%r1 in a video instruction
  bool is_element = false;  // variable or symbol: array[3]; value is the element's offset in bytes
};

struct Instruction {
  std::string_view opcode;  // without modifiers
  std::string_view text;    // source text from the opcode to the last operand, for messages
  uint32_t line = 0;
  uint32_t first_modifier = 0, first_operand = 0;
  uint16_t modifier_count = 0, operand_count = 0;
  bool is_predicated = false;
  bool predicate_negated = false;
  uint32_t predicate = 0;  // register
};

struct Prototype {
  std::vector<Variable> results, parameters;
  std::string_view signature_of;  // .calltargets: the first function, whose signature the prototype takes
};

struct Function {
  std::string_view name;
  Linkage linkage = Linkage::internal;
  bool is_kernel = false;
  bool has_body = false;
  bool is_noreturn = false;
  uint32_t line = 0;
  std::vector<Variable> results,
      parameters;                       // declarations; if there is a body, also the first of `variables`
  std::array<uint32_t, 3> max_block{};  // .maxntid, zeros if absent
  std::array<uint32_t, 3> required_block{};    // .reqntid
  uint32_t max_registers = 0;                  // .maxnreg, 0 if absent
  std::array<uint32_t, 3> required_cluster{};  // .reqnctapercluster
  bool needs_cluster = false;                  // .explicitcluster
  bool blocks_are_clusters = false;

  std::vector<Register> registers;
  std::vector<Variable> variables;  // results, parameters, then the variables declared in the body
  std::vector<Instruction> code;
  std::vector<uint32_t> labels;  // per label: index of the instruction that follows it
  std::vector<Prototype> prototypes;
  std::vector<std::vector<uint32_t>> target_lists;  // per .branchtargets: its labels
  std::vector<std::string_view> modifier_pool;      // without the leading dot
  std::vector<Operand> operand_pool;

  std::span<const std::string_view> modifiers(const Instruction& i) const {
    return {modifier_pool.data() + i.first_modifier, i.modifier_count};
  }
  bool has(const Instruction& i, std::string_view modifier) const {
    return std::ranges::find(modifiers(i), modifier) != modifiers(i).end();
  }
  std::span<const Operand> operands(const Instruction& i) const {
    return {operand_pool.data() + i.first_operand, i.operand_count};
  }
  std::span<const Operand> elements(const Operand& o) const {
    return {operand_pool.data() + o.first, o.count};
  }
  const Operand& base(const Operand& address) const { return operand_pool[address.first]; }
};

struct Alias {
  std::string_view name, target;
};

struct File {
  uint32_t version_major = 0, version_minor = 0;
  uint32_t target = 0;         // 75, 90, 103, ...
  uint32_t max_registers = 0;  // per thread, from register_limit_pragma(); 0: no limit
  std::vector<Variable> variables;
  std::vector<Function> functions;  // declarations and definitions, in order
  std::vector<Alias> aliases;
};

}  // namespace gpupool::softgpu::ptx
