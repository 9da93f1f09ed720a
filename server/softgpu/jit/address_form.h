// Addresses of shared memory as sums: variable + constant + coefficient * unknown + ... Private to jit/'s analyses.
//
// Enough to tell in most kernels whether two accesses of one warp can meet at an address from different lanes. What is not
// understood becomes an unknown of its own, so a form is never wrong, only vague. Arithmetic is taken as exact: addresses
// that wrap around are not considered.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// How an unknown differs between the lanes of a warp.
enum class Variation : uint8_t { uniform, by_lane, by_data };

// The unknown that counts the lanes: %tid.x, which is the lane plus a number that all lanes of a warp share (for blocks
// whose width is a multiple of 32; others have rows that begin within a warp, see relation()).
constexpr uint32_t kLaneUnknown = UINT32_MAX;

struct AddressForm {
  struct Term {
    uint32_t unknown;  // kLaneUnknown, or the register whose value it is
    int64_t coefficient;
    bool operator==(const Term&) const = default;
  };
  std::string_view variable;  // empty: none, or not known which
  int64_t constant = 0;
  std::vector<Term> terms;  // sorted by unknown, no coefficient is 0
  bool operator==(const AddressForm&) const = default;

  int64_t coefficient_of(uint32_t unknown) const;
};

class AddressForms {
 public:
  AddressForms(const ptx::Function& function, const std::vector<uint32_t>& definition_counts);

  // False when the code was too much: the forms so far mean nothing then.
  bool complete() const { return !exhausted_; }
  // Returns the form of the address operand of a load or store.
  AddressForm of_address(const ptx::Operand& address);
  Variation variation(uint32_t unknown) const {
    if (unknown == kLaneUnknown) return Variation::by_lane;
    return warp_uniform_[unknown] || (warp_number_[unknown] && rows_are_warps_) ? Variation::uniform : variation_[unknown];
  }
  // Whether lanes of a warp have different addresses at most where warps span rows of a block.
  bool is_of_warp(const AddressForm& form) const;

 private:
  Variation variation_of(const ptx::Instruction& instruction) const;
  bool is_agreed(const ptx::Instruction& instruction) const;
  void find_variations();
  void find_uniform_comparisons();
  AddressForm of_register(uint32_t reg);
  AddressForm of_operand(const ptx::Operand& operand);
  std::optional<AddressForm> of_instruction(const ptx::Instruction& instruction, uint32_t target);
  std::optional<AddressForm> of_induction(uint32_t reg);
  std::optional<AddressForm> of_bits(const ptx::Instruction& instruction, uint32_t target);

  const ptx::Function& f_;
  std::vector<std::vector<uint32_t>> definitions_;  // per register: instructions; empty when there are many
  std::vector<Variation> variation_;
  bool rows_are_warps_;             // see has_warps_within_rows()
  std::vector<bool> warp_uniform_;  // per register: though its value is computed from the lane's
  std::vector<bool> warp_number_;  // per register: computed from the lane's number, as tid / 32 is, but the same in all lanes of a warp within a row
  std::vector<std::optional<AddressForm>> forms_;
  std::vector<bool> visiting_;
  uint32_t depth_ = 0, steps_ = 0;
  bool exhausted_ = false;
};

struct SharedAccess {
  uint32_t instruction = 0;
  uint32_t block = 0;  // of the flow graph
  uint32_t bytes = 0;
  bool is_store = false;
  bool is_volatile = false;
  AddressForm form;
};

// How the addresses of two accesses by lanes of one warp relate.
enum class Relation : uint8_t {
  apart,         // different lanes never meet at an address
  same_uniform,  // both are at one address that all lanes share
  by_data,       // they may meet, depending on values from memory
  likely,        // they may meet, depending on indices
  certain,       // they meet
};
// `later`: the first access may have happened in an earlier iteration than the second. `changes`: per register, whether
// its value may change from one iteration to the next.
Relation relation(const AddressForms& forms, const SharedAccess& a, const SharedAccess& b, bool later,
                  const std::vector<bool>& changes);

}  // namespace gpupool::softgpu
