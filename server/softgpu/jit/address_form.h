// Addresses as sums: variable + constant + coefficient * unknown + ... Private to jit/'s
// analyses; used by convergence.cc on the thread that compiles.
//
// Precise enough in most kernels to decide whether two accesses of one warp can meet at an address from
// different lanes. A value that the analysis cannot follow becomes an unknown of its own, so a form may be
// imprecise but not wrong, except that arithmetic is taken to be exact: wrap-around of addresses is not
// considered.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu {

// How an unknown varies among the lanes of a warp: the same in all lanes, a function of the lane, or
// dependent on data from memory.
enum class Variation : uint8_t { uniform, by_lane, by_data };

// The unknown that stands for the lane: %tid.x, which is the lane plus a number common to all lanes of a
// warp. This holds for blocks whose width is a multiple of 32; in others, rows begin within a warp, see
// relation().
constexpr uint32_t kLaneUnknown = UINT32_MAX;

constexpr int64_t kWarpLanes = 32;

struct AddressForm {
  struct Term {
    uint32_t unknown;  // kLaneUnknown, or the register that holds the value
    int64_t coefficient;
    bool operator==(const Term&) const = default;
  };
  std::string_view variable;  // empty: none, or unknown
  int64_t constant = 0;
  std::vector<Term> terms;  // sorted by unknown; no coefficient is 0
  bool operator==(const AddressForm&) const = default;

  int64_t coefficient_of(uint32_t unknown) const;
};

class AddressForms {
 public:
  AddressForms(const ptx::Function& function, const std::vector<uint32_t>& definition_counts);

  // Returns false if the analysis ran out of steps; the forms must not be used then.
  bool complete() const { return !exhausted_; }
  // Returns the form of the address operand of a load or store.
  AddressForm of_address(const ptx::Operand& address);
  Variation variation(uint32_t unknown) const {
    if (unknown == kLaneUnknown) return Variation::by_lane;
    return warp_uniform_[unknown] || (warp_number_[unknown] && rows_are_warps_) ? Variation::uniform
                                                                                : variation_[unknown];
  }
  // Returns true if the lanes of a warp can have different addresses only where warps span rows of a block.
  bool is_uniform_per_warp(const AddressForm& form) const;

 private:
  Variation variation_of(const ptx::Instruction& instruction) const;
  bool is_warp_uniform_result(const ptx::Instruction& instruction) const;
  void find_variations();
  void find_uniform_comparisons();
  AddressForm of_register(uint32_t reg);
  AddressForm of_operand(const ptx::Operand& operand);
  std::optional<AddressForm> of_instruction(const ptx::Instruction& instruction, uint32_t target);
  std::optional<AddressForm> of_induction(uint32_t reg);
  std::optional<AddressForm> of_bits(const ptx::Instruction& instruction, uint32_t target);

  const ptx::Function& f_;
  // per register: instructions that define it; empty if there are too many
  std::vector<std::vector<uint32_t>> definitions_;
  std::vector<Variation> variation_;
  bool rows_are_warps_;             // see has_warps_within_rows()
  std::vector<bool> warp_uniform_;  // per register: uniform although computed from the lane's value
  // per register: derived from the lane's number, such as tid / 32, but equal in all lanes of a warp within a
  // row
  std::vector<bool> warp_number_;
  std::vector<std::optional<AddressForm>> forms_;
  std::vector<bool> visiting_;
  uint32_t depth_ = 0, steps_ = 0;
  bool exhausted_ = false;
};

}  // namespace gpupool::softgpu
