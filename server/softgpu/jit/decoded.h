// One instruction during code generation: hands out its modifiers and records which were used, so that an
// unknown modifier is rejected instead of ignored. Errors are thrown as CodegenFailure, which becomes a
// CompileError.
#pragma once
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

struct CodegenFailure {
  std::string message;  // without position
};

enum class Rounding : uint8_t { none, nearest, zero, down, up, nearest_away };

inline bool is_directed(Rounding rounding) {
  return rounding != Rounding::none && rounding != Rounding::nearest;
}

class Decoded {
 public:
  Decoded(const ptx::Function& function, const ptx::Instruction& instruction)
      : function_(function),
        instruction_(instruction),
        modifiers_(function.modifiers(instruction)),
        operands_(function.operands(instruction)) {}

  const ptx::Instruction& instruction() const { return instruction_; }
  std::string_view opcode() const { return instruction_.opcode; }

  bool take(std::string_view word) {
    for (size_t i = 0; i < modifiers_.size(); ++i)
      if (!(used_ >> i & 1) && modifiers_[i] == word) return used_ |= 1u << i, true;
    return false;
  }
  // Takes all of these modifiers that are present; returns true if there was any.
  bool take_any(std::initializer_list<std::string_view> words) {
    bool any = false;
    for (std::string_view word : words) any |= take(word);
    return any;
  }
  // Takes the first of these modifiers that is present and returns it; empty if there is none.
  std::string_view take_one(std::initializer_list<std::string_view> words) {
    for (std::string_view word : words)
      if (take(word)) return word;
    return {};
  }
  std::optional<ptx::Type> maybe_type() {
    for (size_t i = 0; i < modifiers_.size(); ++i) {
      if (used_ >> i & 1) continue;
      if (auto type = ptx::find_type(modifiers_[i])) {
        used_ |= 1u << i;
        return type;
      }
    }
    return std::nullopt;
  }
  ptx::Type type() {
    if (auto type = maybe_type()) return *type;
    fail("a type is missing");
  }
  Rounding rounding() {
    if (take_any({"rn", "rni"})) return Rounding::nearest;
    if (take_any({"rz", "rzi"})) return Rounding::zero;
    if (take_any({"rm", "rmi"})) return Rounding::down;
    if (take_any({"rp", "rpi"})) return Rounding::up;
    if (take("rna")) return Rounding::nearest_away;
    return Rounding::none;
  }
  // Takes cache operators and hints, which have no effect here.
  void take_cache_hints() {
    take_any({"ca",
              "cg",
              "cs",
              "lu",
              "cv",
              "wb",
              "wt",
              "L1::evict_normal",
              "L1::evict_unchanged",
              "L1::evict_first",
              "L1::evict_last",
              "L1::no_allocate",
              "L2::evict_normal",
              "L2::evict_first",
              "L2::evict_last",
              "L2::cache_hint",
              "L2::64B",
              "L2::128B",
              "L2::256B",
              "unified"});
  }
  // Takes the first unused modifier, to be looked up in a table; empty if none is left.
  std::string_view take_next() {
    for (size_t i = 0; i < modifiers_.size(); ++i)
      if (!(used_ >> i & 1)) return used_ |= 1u << i, modifiers_[i];
    return {};
  }
  std::string_view peek(size_t index) const {
    return index < modifiers_.size() ? modifiers_[index] : std::string_view{};
  }
  // Fails unless all modifiers have been taken.
  void done() {
    for (size_t i = 0; i < modifiers_.size(); ++i)
      if (!(used_ >> i & 1))
        fail("modifier ." + std::string(modifiers_[i].substr(0, 60)) + " is not supported here");
  }
  void done(size_t operands) {
    done();
    if (operands_.size() != operands) fail("expected " + std::to_string(operands) + " operands");
  }
  size_t operand_count() const { return operands_.size(); }
  const ptx::Operand& operand(size_t index) const {
    if (index >= operands_.size()) fail("an operand is missing");
    return operands_[index];
  }
  std::span<const ptx::Operand> elements(const ptx::Operand& group) const {
    return function_.elements(group);
  }
  [[noreturn]] void fail(std::string message) const { throw CodegenFailure{std::move(message)}; }

 private:
  const ptx::Function& function_;
  const ptx::Instruction& instruction_;
  std::span<const std::string_view> modifiers_;
  std::span<const ptx::Operand> operands_;
  uint32_t used_ = 0;
};

}  // namespace gpupool::softgpu
