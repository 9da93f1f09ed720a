#include <bit>

#include "tests/server/softgpu/exec/run_grid.h"

using namespace softgpu_test;

namespace {

constexpr uint32_t kFull = 0xffffffff;

struct WarpParams {
  uint32_t* out;
  ShuffleMode mode;
  uint32_t b, c, mask;
};

void shuffle_kernel(ThreadContext* t) {
  auto& p = params<WarpParams>(t);
  if (((p.mask >> t->lane) & 1) == 0) return;
  uint32_t in_range = 99;
  p.out[2 * t->lane] = softgpu_shuffle(t, p.mode, 1000 + t->lane, p.b, p.c, p.mask, &in_range);
  p.out[2 * t->lane + 1] = in_range;
}

// The PTX ISA's pseudo code of shfl.sync, for one lane.
std::pair<int, bool> reference(ShuffleMode mode, int lane, int b, int c) {
  const int segment = (c >> 8) & 31, clamp = c & 31, bval = b & 31;
  const int max_lane = (lane & segment) | (clamp & ~segment), min_lane = lane & segment;
  int j = 0;
  bool p = false;
  switch (mode) {
    case ShuffleMode::up:
      j = lane - bval;
      p = j >= max_lane;
      break;
    case ShuffleMode::down:
      j = lane + bval;
      p = j <= max_lane;
      break;
    case ShuffleMode::butterfly:
      j = lane ^ bval;
      p = j <= max_lane;
      break;
    case ShuffleMode::index:
      j = min_lane | (bval & ~segment);
      p = j <= max_lane;
      break;
  }
  return {p ? j : lane, p};
}

void warp_reduce_kernel(ThreadContext* t) {
  uint32_t value = t->linear_tid;
  for (uint32_t offset = 16; offset > 0; offset /= 2) {
    value += softgpu_shuffle(t, ShuffleMode::down, value, offset, 31, kFull, nullptr);
  }
  if (t->lane == 0 && t->block->block_idx[0] == 0) params<WarpParams>(t).out[t->warp] = value;
}

// The halves of each warp diverge and shuffle separately, several times, before they converge.
void diverged_kernel(ThreadContext* t) {
  auto& p = params<WarpParams>(t);
  const bool low = t->lane < 16;
  const uint32_t mask = low ? 0x0000ffff : 0xffff0000;
  uint32_t value = t->lane;
  for (int i = 0; i < (low ? 5 : 2); ++i)
    value = softgpu_shuffle(t, ShuffleMode::butterfly, value, 1, 31, mask, nullptr);
  softgpu_warp_sync(t, kFull);
  p.out[t->linear_tid] = softgpu_vote(t, VoteMode::ballot, value == (low ? (t->lane ^ 1) : t->lane), kFull);
}

void vote_kernel(ThreadContext* t) {
  auto* out = params<WarpParams>(t).out + t->lane * 8;
  const uint32_t third = t->lane % 3 == 0;
  out[0] = softgpu_vote(t, VoteMode::ballot, third * 5, kFull);
  out[1] = softgpu_vote(t, VoteMode::all, third, kFull);
  out[2] = softgpu_vote(t, VoteMode::any, third, kFull);
  out[3] = softgpu_vote(t, VoteMode::uniform, third, kFull);
  out[4] = softgpu_vote(t, VoteMode::all, 1, kFull);
  out[5] = softgpu_vote(t, VoteMode::any, 0, kFull);
  out[6] = softgpu_vote(t, VoteMode::uniform, 0, kFull);
  out[7] = softgpu_vote(t, VoteMode::ballot, 1, 1u << t->lane);
}

void match_kernel(ThreadContext* t) {
  auto* out = params<WarpParams>(t).out + t->lane * 5;
  const uint64_t key = (uint64_t{t->lane % 4} << 40) | 7;
  uint32_t equal = 99;
  out[0] = softgpu_match_any(t, key, kFull);
  out[1] = softgpu_match_all(t, key, kFull, &equal);
  out[2] = equal;
  out[3] = softgpu_match_all(t, 5, kFull, &equal);
  out[4] = equal;
}

// Lanes exit before the others vote: the vote ignores them.
void ended_kernel(ThreadContext* t) {
  if (t->lane % 2) return;
  params<WarpParams>(t).out[t->lane] = softgpu_vote(t, VoteMode::ballot, 1, kFull);
}

// Lanes exit after the others have begun to wait for them.
void ended_late_kernel(ThreadContext* t) {
  if (t->lane == 31) {
    for (int i = 0; i < 50; ++i) softgpu_yield(t);
    return;
  }
  params<WarpParams>(t).out[t->lane] = softgpu_vote(t, VoteMode::ballot, 1, kFull);
}

// The code that nvcc generates for a warp-aggregated atomic add.
void aggregate_kernel(ThreadContext* t) {
  auto& p = params<WarpParams>(t);
  if (t->linear_tid % 5 == 0) return;
  if (t->lane % 3 != 0) {
    const uint32_t mask = softgpu_active_mask(t);
    const auto leader = static_cast<uint32_t>(std::countr_zero(mask));
    uint32_t base = 0;
    if (t->lane == leader) {
      base = reinterpret_cast<std::atomic<uint32_t>*>(p.out)->fetch_add(
          static_cast<uint32_t>(std::popcount(mask)));
    }
    base = softgpu_shuffle(t, ShuffleMode::index, base, leader, 31, mask, nullptr);
    const uint32_t slot = base + static_cast<uint32_t>(std::popcount(mask & ((1u << t->lane) - 1)));
    reinterpret_cast<std::atomic<uint32_t>*>(p.out)[1 + slot].fetch_add(1);
  }
  softgpu_barrier(t, 0, 0, BarrierReduction::none, 0);
}

void converged_kernel(ThreadContext* t) {
  const uint32_t mask = softgpu_active_mask(t);
  uint32_t value = 1;
  for (uint32_t offset = 16; offset > 0; offset /= 2) {
    value += softgpu_shuffle(t, ShuffleMode::down, value, offset, 31, mask, nullptr);
  }
  if (t->lane == 0) params<WarpParams>(t).out[t->warp] = value;
}

// The active mask of the others must not wait for lane 0, which spins until they store.
void spinning_lane_kernel(ThreadContext* t) {
  auto* flag = reinterpret_cast<std::atomic<uint32_t>*>(params<WarpParams>(t).out);
  if (t->lane == 0) {
    while (flag->load() == 0) softgpu_yield(t);
    return;
  }
  const uint32_t mask = softgpu_active_mask(t);
  if (t->lane == 5) {
    params<WarpParams>(t).out[1] = mask;
    flag->store(1);
  }
}

void vote_once(ThreadContext* t) {
  softgpu_vote(t, VoteMode::any, 1, kFull);
}

void mismatch_kernel(ThreadContext* t) {
  if (t->lane == 0) {
    softgpu_vote(t, VoteMode::any, 1, 3);
  } else {
    softgpu_warp_sync(t, 3);
  }
}

}  // namespace

TEST_CASE("shuffles follow the PTX ISA for every mode, offset, width and clamp") {
  Buffer<uint32_t> out(64);
  for (const auto mode : {ShuffleMode::up, ShuffleMode::down, ShuffleMode::butterfly, ShuffleMode::index}) {
    for (const uint32_t width : {32u, 16u, 8u, 2u, 1u}) {
      const uint32_t c = ((32 - width) << 8) | (mode == ShuffleMode::up ? 0 : 31);
      for (const uint32_t b : {0u, 1u, 3u, 8u, 16u, 31u, 33u}) {
        REQUIRE(run(shuffle_kernel, 1, 32, WarpParams{out.data(), mode, b, c, kFull}).fault ==
                FaultKind::none);
        for (int lane = 0; lane < 32; ++lane) {
          const auto [source, in_range] = reference(mode, lane, static_cast<int>(b), static_cast<int>(c));
          INFO("mode " << static_cast<int>(mode) << " width " << width << " b " << b << " lane " << lane);
          REQUIRE(out[2 * lane] == 1000u + source);
          REQUIRE(out[2 * lane + 1] == in_range);
        }
      }
    }
  }
  // A clamp other than 0 and 31, as in hand-written PTX.
  REQUIRE(run(shuffle_kernel, 1, 32, WarpParams{out.data(), ShuffleMode::down, 2, 20, kFull}).fault ==
          FaultKind::none);
  CHECK(out[2 * 18] == 1020);
  CHECK(out[2 * 19] == 1019);
}

TEST_CASE("a shuffle waits only for the lanes of its mask") {
  Buffer<uint32_t> out(64);
  const WarpParams by_four{out.data(), ShuffleMode::butterfly, 4, 31, 0x00f0f0f0};
  REQUIRE(run(shuffle_kernel, 1, 32, by_four).fault == FaultKind::none);
  CHECK(out[2 * 4] == 1004);  // its partner is not in the mask: own value
  CHECK(out[0] == 0);
  const WarpParams by_one{out.data(), ShuffleMode::butterfly, 1, 31, 0x00f0f0f0};
  REQUIRE(run(shuffle_kernel, 1, 32, by_one).fault == FaultKind::none);
  CHECK(out[2 * 4] == 1005);
  CHECK(out[2 * 23] == 1022);
}

TEST_CASE("a warp reduction") {
  Buffer<uint32_t> out(32);
  REQUIRE(run(warp_reduce_kernel, 10 / kLess + 1, 1024, WarpParams{out.data()}).fault == FaultKind::none);
  for (uint32_t w = 0; w < 32; ++w) CHECK(out[w] == 32 * (w * 32) + 496);
}

TEST_CASE("diverged halves of a warp run independently and reconverge") {
  Buffer<uint32_t> out(128);
  REQUIRE(run(diverged_kernel, 1, 128, WarpParams{out.data()}).fault == FaultKind::none);
  for (uint32_t i = 0; i < 128; ++i) REQUIRE(out[i] == kFull);
}

TEST_CASE("votes") {
  Buffer<uint32_t> out(32 * 8);
  REQUIRE(run(vote_kernel, 1, 32, WarpParams{out.data()}).fault == FaultKind::none);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t* got = out.data() + lane * 8;
    CHECK(got[0] == 0x49249249);
    CHECK(got[1] == 0);
    CHECK(got[2] == 1);
    CHECK(got[3] == 0);
    CHECK(got[4] == 1);
    CHECK(got[5] == 0);
    CHECK(got[6] == 1);
    CHECK(got[7] == 1u << lane);
  }
}

TEST_CASE("a partial warp counts only its existing lanes") {
  Buffer<uint32_t> out(32 * 8);
  REQUIRE(run(vote_kernel, 1, 10, WarpParams{out.data()}).fault == FaultKind::none);
  CHECK(out[0] == 0x249);
  CHECK(out[4] == 1);
}

TEST_CASE("matches") {
  Buffer<uint32_t> out(32 * 5);
  REQUIRE(run(match_kernel, 1, 32, WarpParams{out.data()}).fault == FaultKind::none);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t* got = out.data() + lane * 5;
    CHECK(got[0] == 0x11111111u << (lane % 4));
    CHECK(got[1] == 0);
    CHECK(got[2] == 0);
    CHECK(got[3] == kFull);
    CHECK(got[4] == 1);
  }
}

TEST_CASE("lanes that ended drop out of masks") {
  Buffer<uint32_t> out(32);
  REQUIRE(run(ended_kernel, 1, 32, WarpParams{out.data()}).fault == FaultKind::none);
  CHECK(out[0] == 0x55555555);
  REQUIRE(run(ended_late_kernel, 1, 32, WarpParams{out.data()}).fault == FaultKind::none);
  CHECK(out[3] == 0x7fffffff);
}

TEST_CASE("active masks: aggregated atomics, converged warps, spinning lanes") {
  Buffer<uint32_t> out(2000);
  REQUIRE(run(aggregate_kernel, 4, 256, WarpParams{out.data()}).fault == FaultKind::none);
  uint32_t expected = 0;
  for (uint32_t i = 0; i < 256; ++i) expected += i % 5 != 0 && i % 32 % 3 != 0;
  CHECK(out[0] == 4 * expected);
  for (uint32_t i = 0; i < 4 * expected; ++i) REQUIRE(out[1 + i] == 1);
  CHECK(out[1 + 4 * expected] == 0);

  REQUIRE(run(converged_kernel, 1, 128, WarpParams{out.data()}).fault == FaultKind::none);
  for (uint32_t w = 0; w < 4; ++w) CHECK(out[w] == 32);

  out[0] = 0;
  REQUIRE(run(spinning_lane_kernel, 1, 32, WarpParams{out.data()}).fault == FaultKind::none);
  CHECK(out[1] == 0xfffffffe);
}

TEST_CASE("lanes that wait at different operations with the same mask are a deadlock") {
  CHECK(run(mismatch_kernel, 1, 2, WarpParams{}).fault == FaultKind::deadlock);
}

TEST_CASE("a block that runs in loops rejects operations that need fibers") {
  auto r = request(vote_once, 1, 32, 0);
  r.code.loop_entry = in_loops<vote_once>;
  CHECK(run(executor(), std::move(r)).fault == FaultKind::illegal_instruction);
}
