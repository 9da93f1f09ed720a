// The collective operations of one warp: shuffles, votes, matches, warp barriers. Internal to exec/.
//
// An arriving lane joins the group of lanes with the same operation and member mask; the last member to
// arrive computes the results of all. Several groups exist at once when the warp has diverged. Lanes that
// have ended are not waited for. Plain data of one block, used by its pool thread alone.
#pragma once
#include <cstdint>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

struct Warp {
  enum class Kind : uint8_t { sync, shuffle, vote, match_any, match_all, call };
  struct Group {
    uint32_t members;
    uint32_t arrived;
    Kind kind;
    uint8_t mode;           // ShuffleMode or VoteMode
    WarpCallback function;  // for Kind::call
  };

  uint32_t ended = 0;                // lanes that have ended or never existed
  uint32_t runnable = 0;             // number of lanes that run or could run now
  uint32_t active_mask_waiters = 0;  // lanes that wait in softgpu_active_mask
  uint32_t convergence_waiters = 0;  // lanes that wait in softgpu_converge
  uint32_t resumed = 0;              // lanes that left softgpu_converge and have not yielded since
  uint32_t spinning = 0;             // lanes that yielded and do not count as runnable
  bool yielded = false;              // a resumed lane has yielded since the last release
  uint32_t starvation = 0;  // weighted number of releases for which lanes at a later point have waited
  uint32_t group_count = 0;
  Group groups[kWarpSize];

  // Per lane: operands and results.
  uint64_t value[kWarpSize];
  uint32_t b[kWarpSize], c[kWarpSize];
  uint32_t result[kWarpSize];
  uint32_t flag[kWarpSize];  // in_range, all_equal
  uintptr_t call_site[kWarpSize];
  uint32_t point[kWarpSize];  // where a lane of convergence_waiters waits

  void reset(uint32_t lanes) {
    ended = lanes == kWarpSize ? 0 : ~((1u << lanes) - 1);
    runnable = lanes;
    active_mask_waiters = 0;
    convergence_waiters = resumed = spinning = starvation = 0;
    yielded = false;
    group_count = 0;
  }
  // Called when no lane is runnable and some wait for convergence: removes the lanes that may continue from
  // `convergence_waiters` and returns them. These are the lanes at the earliest point, so that a lane that
  // left a branch or loop early waits for the rest of its warp.
  uint32_t take_converged();
  // Adds a lane to a group. Returns the lanes whose results are ready, this one included, or 0 if the lane
  // has to wait.
  uint32_t arrive(uint32_t lane, Kind kind, uint8_t mode, uint32_t members, WarpCallback function = nullptr);
  // Called after `ended` grew: returns the lanes of one group that this completed, 0 if there is none.
  uint32_t complete_one();

 private:
  uint32_t finish(uint32_t group);
  void compute(const Group& group);
  void compute_shuffle(const Group& group);
  void compute_vote(const Group& group);
  void compute_match(const Group& group);
  void compute_call(const Group& group);
};

}  // namespace gpupool::softgpu
