#include "server/softgpu/exec/warp.h"

#include <bit>

namespace gpupool::softgpu {
namespace {

// Lanes at earlier points may spin for lanes at later ones, so the wait of the later lanes is bounded by
// kMaxStarvation releases of other lanes. A release counts kYieldedWeight times if a lane has yielded in a
// loop since the last one.
constexpr uint32_t kMaxStarvation = 1 << 16;
constexpr uint32_t kYieldedWeight = 1 << 10;

template <typename F>
void for_each_lane(uint32_t lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(static_cast<uint32_t>(std::countr_zero(lanes)));
}

}  // namespace

uint32_t Warp::arrive(uint32_t lane, Kind kind, uint8_t mode, uint32_t members, WarpCallback function) {
  members |= 1u << lane;  // a mask without the caller is undefined in PTX; it must not wait for ever
  for (uint32_t i = 0; i < group_count; ++i) {
    Group& group = groups[i];
    if (group.members != members || group.kind != kind || group.mode != mode || group.function != function)
      continue;
    group.arrived |= 1u << lane;
    return (group.members & ~group.arrived & ~ended) == 0 ? finish(i) : 0;
  }
  groups[group_count] = {members, 1u << lane, kind, mode, function};
  const uint32_t index = group_count++;
  return (members & ~(1u << lane) & ~ended) == 0 ? finish(index) : 0;
}

uint32_t Warp::take_converged() {
  uint32_t earliest = UINT32_MAX, lanes = 0;
  for_each_lane(convergence_waiters, [&](uint32_t lane) {
    if (point[lane] < earliest) earliest = point[lane], lanes = 0;
    if (point[lane] == earliest) lanes |= 1u << lane;
  });
  starvation = lanes == convergence_waiters ? 0 : starvation + (yielded ? kYieldedWeight : 1);
  if (starvation >= kMaxStarvation) {
    lanes = convergence_waiters;
    starvation = 0;
  }
  yielded = false;
  convergence_waiters &= ~lanes;
  resumed |= lanes;
  return lanes;
}

uint32_t Warp::complete_one() {
  for (uint32_t i = 0; i < group_count; ++i) {
    if ((groups[i].members & ~groups[i].arrived & ~ended) == 0) return finish(i);
  }
  return 0;
}

uint32_t Warp::finish(uint32_t index) {
  const Group group = groups[index];
  groups[index] = groups[--group_count];
  compute(group);
  return group.arrived;
}

void Warp::compute(const Group& group) {
  switch (group.kind) {
    case Kind::sync: return;
    case Kind::shuffle: return compute_shuffle(group);
    case Kind::vote: return compute_vote(group);
    case Kind::match_any:
    case Kind::match_all: return compute_match(group);
    case Kind::call: return compute_call(group);
  }
}

void Warp::compute_call(const Group& group) {
  void* data[kWarpSize] = {};
  for_each_lane(group.arrived, [&](uint32_t lane) { data[lane] = reinterpret_cast<void*>(value[lane]); });
  group.function(data);
}

// PTX ISA, shfl.sync: c holds the clamp value in bits 0 to 4 and the segment mask in bits 8 to 12.
void Warp::compute_shuffle(const Group& group) {
  for_each_lane(group.arrived, [&](uint32_t lane) {
    const uint32_t clamp = c[lane] & 31, segment = (c[lane] >> 8) & 31, offset = b[lane] & 31;
    const auto last = static_cast<int>((lane & segment) | (clamp & ~segment));
    const auto first = static_cast<int>(lane & segment);
    const auto me = static_cast<int>(lane);
    int source = me;
    bool in_range = false;
    switch (static_cast<ShuffleMode>(group.mode)) {
      case ShuffleMode::up:
        source = me - static_cast<int>(offset);
        in_range = source >= last;
        break;
      case ShuffleMode::down:
        source = me + static_cast<int>(offset);
        in_range = source <= last;
        break;
      case ShuffleMode::butterfly:
        source = me ^ static_cast<int>(offset);
        in_range = source <= last;
        break;
      case ShuffleMode::index:
        source = first | static_cast<int>(offset & ~segment);
        in_range = source <= last;
        break;
    }
    // Reading a lane that does not take part is undefined in PTX; here the lane keeps its own value.
    const bool present = in_range && ((group.arrived >> source) & 1) != 0;
    result[lane] = static_cast<uint32_t>(value[present ? source : me]);
    flag[lane] = in_range;
  });
}

void Warp::compute_vote(const Group& group) {
  uint32_t votes = 0;
  for_each_lane(group.arrived,
                [&](uint32_t lane) { votes |= static_cast<uint32_t>(value[lane] != 0) << lane; });
  uint32_t outcome = 0;
  switch (static_cast<VoteMode>(group.mode)) {
    case VoteMode::all: outcome = votes == group.arrived; break;
    case VoteMode::any: outcome = votes != 0; break;
    case VoteMode::uniform: outcome = votes == 0 || votes == group.arrived; break;
    case VoteMode::ballot: outcome = votes; break;
  }
  for_each_lane(group.arrived, [&](uint32_t lane) { result[lane] = outcome; });
}

void Warp::compute_match(const Group& group) {
  const uint32_t leader = static_cast<uint32_t>(std::countr_zero(group.arrived));
  for_each_lane(group.arrived, [&](uint32_t lane) {
    uint32_t same = 0;
    for_each_lane(group.arrived, [&](uint32_t other) {
      same |= static_cast<uint32_t>(value[other] == value[lane]) << other;
    });
    result[lane] = same;
  });
  if (group.kind == Kind::match_any) return;
  const bool all = result[leader] == group.arrived;
  for_each_lane(group.arrived, [&](uint32_t lane) {
    result[lane] = all ? group.arrived : 0;
    flag[lane] = all;
  });
}

}  // namespace gpupool::softgpu
