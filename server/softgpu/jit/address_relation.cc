#include "server/softgpu/jit/address_relation.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace gpupool::softgpu {
namespace {

struct Difference {
  int64_t constant = 0;
  int64_t multiple = 0;        // any multiple of this may be added to the constant; 0: none
  bool between_lanes = false;  // the multiple may differ between the lanes
  bool by_data = false;

  void add_any(int64_t coefficient) { multiple = std::gcd(multiple, coefficient); }
  // Returns true if accesses of these sizes overlap when their addresses differ by this difference plus
  // `more`.
  bool overlaps(int64_t more, uint32_t a_bytes, uint32_t b_bytes) const {
    int64_t apart = constant + more;
    if (multiple == 0) return apart < int64_t{a_bytes} && -apart < int64_t{b_bytes};
    apart = (apart % multiple + multiple) % multiple;
    return apart < int64_t{a_bytes} || multiple - apart < int64_t{b_bytes};
  }
};

// Returns the distance from a's address to b's, without the part that depends on the lane.
Difference difference_of(const AddressForms& forms, const AddressForm& a, const AddressForm& b, bool later,
                         const std::vector<bool>& changes) {
  Difference difference;
  difference.constant = b.constant - a.constant;
  if (a.variable != b.variable) difference.add_any(1);
  auto see = [&](uint32_t unknown) {
    if (unknown == kLaneUnknown) return;
    const int64_t in_a = a.coefficient_of(unknown), in_b = b.coefficient_of(unknown);
    const Variation variation = forms.variation(unknown);
    if (variation == Variation::uniform && !(later && changes[unknown]))
      return difference.add_any(in_b - in_a);
    difference.add_any(in_a);
    difference.add_any(in_b);
    difference.between_lanes |= variation != Variation::uniform;
    difference.by_data |= variation == Variation::by_data;
  };
  for (const AddressForm::Term& term : a.terms) see(term.unknown);
  for (const AddressForm::Term& term : b.terms) see(term.unknown);
  return difference;
}

}  // namespace

Relation relation(const AddressForms& forms, const MemoryAccess& a, const MemoryAccess& b, bool later,
                  const std::vector<bool>& changes) {
  if (!a.form.variable.empty() && !b.form.variable.empty() && a.form.variable != b.form.variable)
    return Relation::apart;
  const int64_t a_lane = a.form.coefficient_of(kLaneUnknown), b_lane = b.form.coefficient_of(kLaneUnknown);
  Difference difference = difference_of(forms, a.form, b.form, later, changes);
  const bool varies = a_lane != 0 || b_lane != 0 || difference.between_lanes;
  if (!later && a.form == b.form)
    return varies && !forms.is_uniform_per_warp(a.form) ? Relation::apart : Relation::same_uniform;
  const Relation meet = difference.multiple == 0 ? Relation::certain
                        : difference.by_data     ? Relation::by_data
                                                 : Relation::likely;
  if (!varies) {
    if (!difference.overlaps(0, a.bytes, b.bytes)) return Relation::apart;
    return difference.multiple == 0 ? Relation::same_uniform : meet;
  }
  if (a_lane == b_lane) {
    const bool same_lane = difference.between_lanes || a_lane == 0;
    for (int64_t d = 1 - int64_t{kWarpLanes}; d < kWarpLanes; ++d)
      if ((d != 0 || same_lane) && difference.overlaps(a_lane * d, a.bytes, b.bytes)) return meet;
    return Relation::apart;
  }
  // The number of the warp's first lane does not cancel out here.
  const Relation likely = difference.by_data ? Relation::by_data : Relation::likely;
  difference.add_any(kWarpLanes * (b_lane - a_lane));
  for (int64_t of_a = 0; of_a < kWarpLanes; ++of_a)
    for (int64_t of_b = 0; of_b < kWarpLanes; ++of_b)
      if (of_a != of_b && difference.overlaps(b_lane * of_b - a_lane * of_a, a.bytes, b.bytes)) return likely;
  return Relation::apart;
}

bool are_neighbouring_elements(const AddressForms& forms, const MemoryAccess& a, const MemoryAccess& b,
                               bool later, const std::vector<bool>& changes) {
  const int64_t element = std::abs(a.form.coefficient_of(kLaneUnknown));
  if (element == 0 || a.form.coefficient_of(kLaneUnknown) != b.form.coefficient_of(kLaneUnknown))
    return false;
  if (a.form.variable != b.form.variable) return false;
  int64_t rows = 0;  // any multiple of this may be added to the distance
  const auto see = [&](uint32_t unknown) {
    if (unknown == kLaneUnknown) return true;
    const int64_t in_a = a.form.coefficient_of(unknown), in_b = b.form.coefficient_of(unknown);
    if (in_a == in_b && !(later && changes[unknown])) return true;
    rows = std::gcd(rows, std::gcd(in_a, in_b));
    return forms.variation(unknown) == Variation::uniform && rows >= kWarpLanes * element;
  };
  for (const auto* terms : {&a.form.terms, &b.form.terms})
    if (!std::ranges::all_of(*terms, [&](const AddressForm::Term& term) { return see(term.unknown); }))
      return false;
  int64_t apart = std::abs(b.form.constant - a.form.constant);
  if (rows != 0) apart = std::min(apart % rows, rows - apart % rows);
  return apart != 0 && apart % element == 0 && apart / element < kWarpLanes;
}

}  // namespace gpupool::softgpu
