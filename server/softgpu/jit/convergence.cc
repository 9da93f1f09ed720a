#include "server/softgpu/jit/convergence.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/softgpu/jit/address_form.h"
#include "server/softgpu/jit/address_relation.h"
#include "server/softgpu/jit/definitions.h"
#include "server/softgpu/jit/flow_graph.h"
#include "server/softgpu/jit/waits.h"

namespace gpupool::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;

// Larger functions are left unchanged: the cost of the analysis is quadratic in the number of accesses.
constexpr size_t kMaxAccesses = 512;
constexpr uint64_t kMaxAnalysisWork = 50'000'000;

// Returns true if the instruction synchronises the lanes of a warp.
bool is_warp_barrier(const Function& f, const Instruction& i) {
  return !i.is_predicated && waits_of(i.opcode) == Waits::with_warp && !f.has(i, "arrive");
}

// A set of accesses, one bit each.
class Bits {
 public:
  explicit Bits(size_t count) : words_((count + 63) / 64) {}
  void set(size_t n) { words_[n / 64] |= uint64_t{1} << n % 64; }
  bool test(size_t n) const { return (words_[n / 64] >> n % 64 & 1) != 0; }
  bool empty() const { return words_.empty(); }
  void clear() { std::fill(words_.begin(), words_.end(), 0); }
  bool merge(const Bits& other) {  // returns true if this set grew
    bool grew = false;
    for (size_t w = 0; w < words_.size(); ++w) {
      grew |= (other.words_[w] & ~words_[w]) != 0;
      words_[w] |= other.words_[w];
    }
    return grew;
  }
  void move_to(Bits& other, const Bits& which) {
    for (size_t w = 0; w < which.words_.size(); ++w) {
      other.words_[w] |= words_[w] & which.words_[w];
      words_[w] &= ~which.words_[w];
    }
  }

 private:
  std::vector<uint64_t> words_;
};

// The accesses since the lanes last met. An access is stale once a register of its form has changed, so that
// an equal form may mean another address.
struct Pending {
  explicit Pending(size_t count) : fresh(count), stale(count) {}
  void clear() { fresh.clear(), stale.clear(); }
  bool merge(const Pending& other) {
    const bool grew = fresh.merge(other.fresh);
    return stale.merge(other.stale) || grew;
  }
  Bits fresh, stale;
};

class Finder {
 public:
  Finder(const Function& f, const std::vector<uint32_t>& definitions, bool synchronises)
      : f_(f), synchronises_(synchronises), forms_(f, definitions), graph_(build_flow_graph(f)) {
    find_accesses(true);
    if (accesses_.size() > kMaxAccesses) find_accesses(false);
    if (accesses_.empty() || accesses_.size() > kMaxAccesses || !forms_.complete()) return;
    find_changes(definitions);
    find_divergence();
    warp_barriers_.resize(f.code.size());
    for (uint32_t i = 0; i < f.code.size(); ++i) warp_barriers_[i] = is_warp_barrier(f, f.code[i]);
    points_.assign(f.code.size(), false);
  }

  std::vector<bool> find() {
    bool more = !points_.empty();
    while (more) {
      more = false;
      flow();
      for (uint32_t b = 0; b < graph_.blocks.size() && !(more && work_ < kMaxAnalysisWork); ++b)
        more |= add_points(b);
    }
    return found_exchange_ ? points_ : std::vector<bool>();
  }

 private:
  void find_accesses(bool with_global);
  void find_changes(const std::vector<uint32_t>& definitions);
  void find_divergence();
  void find_partial_blocks();
  std::pair<uint32_t, uint32_t> bypassed(uint32_t from, uint32_t to) const;
  void flow();
  bool add_points(uint32_t block);
  template <typename Visit>
  void walk(uint32_t block, Pending& pending, Visit before_access);
  bool conflicts(uint32_t earlier, uint32_t now, bool stale) const;
  bool must_converge(const Pending& pending, uint32_t now);

  const Function& f_;
  const bool synchronises_;
  AddressForms forms_;
  FlowGraph graph_;
  std::vector<MemoryAccess> accesses_;
  std::vector<uint32_t> access_at_;    // per instruction: index into accesses_, or UINT32_MAX
  std::vector<bool> changes_;          // per register: value may differ between iterations
  std::vector<Bits> users_;            // per register: accesses whose form contains it
  std::vector<Bits> of_block_;         // per block: its accesses
  std::vector<bool> diverges_;         // per block: lanes of a warp may leave it for different blocks
  std::vector<bool> diverged_target_;  // per block: target of a divergent branch
  std::vector<bool> partial_;          // per block: only some lanes of a warp may execute it
  std::vector<bool> warp_barriers_, points_;
  std::vector<Pending> at_start_;  // per block
  bool found_exchange_ = false;    // a lane may load data that another has stored
  uint64_t work_ = 0;
};

void Finder::find_accesses(bool with_global) {
  accesses_.clear();
  access_at_.assign(f_.code.size(), UINT32_MAX);
  for (uint32_t index = 0; index < f_.code.size(); ++index) {
    const Instruction& i = f_.code[index];
    if ((i.opcode != "ld" && i.opcode != "st") || f_.has(i, "async") || f_.has(i, "bulk")) continue;
    const auto operands = f_.operands(i);
    const size_t at = i.opcode == "ld" ? 1 : 0;
    if (operands.size() < 2 || operands[at].kind != Operand::Kind::address) continue;
    MemoryAccess access;
    access.is_volatile = f_.has(i, "volatile");
    bool other_space = false;
    for (std::string_view word : f_.modifiers(i)) {
      if (auto type = ptx::find_type(word)) access.bytes = ptx::bytes_of(*type);
      if (auto space = ptx::find_space(word); space && *space != ptx::Space::shared) other_space = true;
    }
    // A volatile access by a generic address may be to shared memory.
    const bool shared = f_.has(i, "shared") || f_.has(i, "shared::cta");
    access.is_global = f_.has(i, "global");
    if (!shared && !(access.is_global && with_global) && (other_space || !access.is_volatile)) continue;
    access.bytes *= f_.has(i, "v2") ? 2 : f_.has(i, "v4") ? 4 : f_.has(i, "v8") ? 8 : 1;
    access.instruction = index;
    access.block = graph_.block_of[index];
    access.is_store = i.opcode == "st";
    access.form = forms_.of_address(operands[at]);
    access_at_[index] = static_cast<uint32_t>(accesses_.size());
    accesses_.push_back(std::move(access));
  }
}

void Finder::find_changes(const std::vector<uint32_t>& definitions) {
  std::vector<bool> in_loop(graph_.blocks.size(), false);
  for (uint32_t b = 0; b < graph_.blocks.size(); ++b)
    for (uint32_t s : graph_.blocks[b].successors)
      for (uint32_t inside = s; s <= b && inside <= b; ++inside) in_loop[inside] = true;
  changes_.assign(f_.registers.size(), false);
  for (uint32_t i = 0; i < f_.code.size(); ++i)
    for_each_definition(f_, f_.code[i], [&](uint32_t reg) {
      if (definitions[reg] > 1 || in_loop[graph_.block_of[i]]) changes_[reg] = true;
    });
  users_.assign(f_.registers.size(), Bits(0));
  for (uint32_t n = 0; n < accesses_.size(); ++n)
    for (const AddressForm::Term& term : accesses_[n].form.terms) {
      if (term.unknown == kLaneUnknown) continue;
      Bits& users = users_[term.unknown];
      if (users.empty()) users = Bits(accesses_.size());
      users.set(n);
    }
}

// Returns true if the two accesses are evidence that lanes exchange data.
bool Finder::conflicts(uint32_t earlier, uint32_t now, bool stale) const {
  const MemoryAccess &a = accesses_[earlier], &b = accesses_[now];
  // Most kernels load and store global arrays, and few exchange data by them within a warp.
  if (a.is_global || b.is_global)
    return a.is_global && b.is_global && are_neighbouring_elements(forms_, a, b, stale, changes_);
  const bool is_volatile = a.is_volatile || b.is_volatile;
  switch (relation(forms_, a, b, stale, changes_)) {
    case Relation::apart: return false;
    case Relation::certain: return true;
    case Relation::likely: return is_volatile || synchronises_;
    case Relation::by_data: return is_volatile;
    case Relation::same_uniform: break;
  }
  // A single lane that works alone makes both accesses under one condition that is false in the other lanes;
  // the other lanes read its results under another condition.
  const Instruction &first = f_.code[a.instruction], &second = f_.code[b.instruction];
  const bool all_lanes =
      !partial_[a.block] && (!first.is_predicated || forms_.variation(first.predicate) == Variation::uniform);
  const bool one_condition = a.block == b.block && first.is_predicated == second.is_predicated &&
                             (!first.is_predicated || (first.predicate == second.predicate &&
                                                       first.predicate_negated == second.predicate_negated));
  return (all_lanes || !one_condition) && (is_volatile || synchronises_);
}

bool Finder::must_converge(const Pending& pending, uint32_t now) {
  bool must = false;
  for (uint32_t n = 0; n < accesses_.size(); ++n) {
    if (accesses_[n].is_store == accesses_[now].is_store) continue;
    const bool fresh = pending.fresh.test(n), stale = pending.stale.test(n);
    if (!fresh && !stale) continue;
    work_ += 100;
    if (!(fresh && conflicts(n, now, false)) && !(stale && conflicts(n, now, true))) continue;
    must = true;
    found_exchange_ |= synchronises_ || !accesses_[now].is_store;
  }
  return must;
}

template <typename Visit>
void Finder::walk(uint32_t block, Pending& pending, Visit before_access) {
  for (uint32_t i = graph_.blocks[block].begin; i < graph_.blocks[block].end; ++i) {
    if (access_at_[i] != UINT32_MAX) before_access(i, access_at_[i]);
    if (warp_barriers_[i] || points_[i]) pending.clear();
    if (access_at_[i] != UINT32_MAX) pending.fresh.set(access_at_[i]);
    for_each_definition(f_, f_.code[i],
                        [&](uint32_t reg) { pending.fresh.move_to(pending.stale, users_[reg]); });
  }
}

void Finder::flow() {
  at_start_.assign(graph_.blocks.size(), Pending(accesses_.size()));
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t b = 0; b < graph_.blocks.size(); ++b) {
      Pending pending = at_start_[b];
      walk(b, pending, [](uint32_t, uint32_t) {});
      for (uint32_t s : graph_.blocks[b].successors) {
        changed |= at_start_[s].merge(pending);
        const auto [first, last] = bypassed(b, s);
        for (uint32_t other = first; other < last; ++other) {
          changed |= at_start_[s].fresh.merge(of_block_[other]);
          changed |= at_start_[s].stale.merge(of_block_[other]);
        }
      }
    }
    work_ += f_.code.size() * 8;
  }
}

// Returns the range of blocks in which other lanes of the warp may be while some lanes go from one block to
// another: lanes wait only at points, in the order of the code. Empty if all lanes stay together.
std::pair<uint32_t, uint32_t> Finder::bypassed(uint32_t from, uint32_t to) const {
  const auto& successors = graph_.blocks[from].successors;
  const uint32_t first = successors.size() > 1 ? successors.front() : from + 1;  // successors are sorted
  const bool apart = successors.size() > 1 ? diverges_[from] : to > from + 1 && diverged_target_[from + 1];
  return apart && first < to ? std::pair(first, to) : std::pair(0u, 0u);
}

void Finder::find_divergence() {
  of_block_.assign(graph_.blocks.size(), Bits(accesses_.size()));
  for (uint32_t n = 0; n < accesses_.size(); ++n) of_block_[accesses_[n].block].set(n);
  diverges_.assign(graph_.blocks.size(), false);
  diverged_target_.assign(graph_.blocks.size() + 1, false);
  for (uint32_t b = 0; b < graph_.blocks.size(); ++b) {
    const Instruction& last = f_.code[graph_.blocks[b].end - 1];
    if (graph_.blocks[b].successors.size() < 2) continue;
    diverges_[b] = last.opcode == "brx" ||
                   (last.is_predicated && forms_.variation(last.predicate) != Variation::uniform);
    for (uint32_t s : graph_.blocks[b].successors) diverged_target_[s] = diverged_target_[s] || diverges_[b];
  }
  find_partial_blocks();
}

// Marks the blocks after a divergent branch up to its last target, extended to the targets of jumps out of
// these blocks (`else`). For a divergent branch back, marks the blocks of the loop, which lanes may leave
// early.
void Finder::find_partial_blocks() {
  partial_.assign(graph_.blocks.size(), false);
  for (uint32_t b = 0; b < graph_.blocks.size(); ++b) {
    if (!diverges_[b]) continue;
    const auto& targets = graph_.blocks[b].successors;  // sorted
    for (uint32_t inside = targets.front(); inside <= b; ++inside) partial_[inside] = true;
    uint32_t end = targets.back();
    for (uint32_t inside = b + 1; inside < end; ++inside) {
      partial_[inside] = true;
      const auto& next = graph_.blocks[inside].successors;
      if (inside < targets.back() && !next.empty()) end = std::max(end, next.back());
    }
  }
}

bool Finder::add_points(uint32_t block) {
  bool added = false;
  Pending pending = at_start_[block];
  walk(block, pending, [&](uint32_t instruction, uint32_t access) {
    if (points_[instruction] || !must_converge(pending, access)) return;
    points_[instruction] = true;
    added = true;
  });
  return added;
}

}  // namespace

std::vector<bool> find_convergence_points(const Function& f, const std::vector<uint32_t>& definitions,
                                          bool synchronises) {
  const auto stores = [&](const Instruction& i) {
    return i.opcode == "st" &&
           (f.has(i, "shared") || f.has(i, "shared::cta") || f.has(i, "volatile") || f.has(i, "global"));
  };
  if (std::none_of(f.code.begin(), f.code.end(), stores)) return {};
  return Finder(f, definitions, synchronises).find();
}

std::vector<bool> all_memory_accesses(const Function& f) {
  const auto shared_by_lanes = [&](const Instruction& i) {
    if (i.opcode == "atom" || i.opcode == "red") return true;
    return (i.opcode == "ld" || i.opcode == "st") && !f.has(i, "param") && !f.has(i, "param::func") &&
           !f.has(i, "param::entry") && !f.has(i, "const");
  };
  std::vector<bool> points(f.code.size());
  std::transform(f.code.begin(), f.code.end(), points.begin(), shared_by_lanes);
  return std::find(points.begin(), points.end(), true) == points.end() ? std::vector<bool>{} : points;
}

}  // namespace gpupool::softgpu
