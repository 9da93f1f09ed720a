// Memory shared by several holders: each piece is charged once while at least one of them holds it. It is
// part of Account, in shared memory; all zeroes is the empty state.
//
// A holder joins or leaves a piece with a single atomic operation, so a process may be killed at any
// instruction; poold then calls leave_all(). join() and add() need a lock among all processes (AccountLock);
// the rest may be called at any time.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace gpupool::quota {

template <uint32_t Holders, uint32_t Pieces>
class SharedAllocations {
  static_assert(Holders % 64 == 0);

 public:
  // Returns false if no holder has a piece of this id.
  bool join(uint64_t id, uint32_t holder) {
    Piece* const piece = find(id);
    if (!piece) return false;
    piece->holders[holder / 64].fetch_or(bit(holder));
    return true;
  }
  // `id`: not 0, and not of a held piece. Returns false if there are too many pieces.
  bool add(uint64_t id, uint32_t gpu, uint64_t bytes, uint32_t holder) {
    for (uint32_t i = 0; i < Pieces; ++i) {
      if (i < in_use() && pieces_[i].held()) continue;
      pieces_[i].id.store(id);
      pieces_[i].gpu.store(gpu);
      pieces_[i].bytes.store(bytes);
      if (i >= in_use()) in_use_.store(i + 1);
      pieces_[i].holders[holder / 64].fetch_or(bit(holder));
      return true;
    }
    return false;
  }
  void leave(uint64_t id, uint32_t holder) {
    if (Piece* const piece = find(id)) piece->holders[holder / 64].fetch_and(~bit(holder));
  }
  void leave_all(uint32_t holder) {
    for (uint32_t i = 0; i < in_use(); ++i) pieces_[i].holders[holder / 64].fetch_and(~bit(holder));
  }
  // Saturates, since other processes may write anything here.
  uint64_t bytes(uint32_t gpu) const {
    return sum([&](const Piece& piece) { return piece.gpu.load() == gpu && piece.held(); });
  }
  uint64_t bytes_of(uint32_t gpu, uint32_t holder) const {
    return sum([&](const Piece& piece) {
      return piece.gpu.load() == gpu && (piece.holders[holder / 64].load() & bit(holder)) != 0;
    });
  }

 private:
  struct Piece {
    std::atomic<uint64_t> id;
    std::atomic<uint64_t> bytes;
    std::atomic<uint32_t> gpu;
    std::atomic<uint64_t> holders[Holders / 64];  // a bit for each; all zero: this entry is free
    bool held() const {
      return std::any_of(std::begin(holders), std::end(holders),
                         [](const auto& word) { return word.load() != 0; });
    }
  };
  static constexpr uint64_t bit(uint32_t holder) { return uint64_t{1} << holder % 64; }
  uint32_t in_use() const { return std::min(in_use_.load(), Pieces); }
  Piece* find(uint64_t id) {
    for (uint32_t i = 0; i < in_use(); ++i) {
      if (pieces_[i].id.load() == id && pieces_[i].held()) return &pieces_[i];
    }
    return nullptr;
  }
  template <class Counts>
  uint64_t sum(Counts&& counts) const {
    uint64_t all = 0;
    for (uint32_t i = 0; i < in_use(); ++i) {
      if (counts(pieces_[i]) && __builtin_add_overflow(all, pieces_[i].bytes.load(), &all)) return UINT64_MAX;
    }
    return all;
  }

  std::atomic<uint32_t> in_use_;  // upper bound of the entries that were ever used
  Piece pieces_[Pieces];
};

}  // namespace gpupool::quota
