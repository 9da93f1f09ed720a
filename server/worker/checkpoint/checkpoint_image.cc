#include "server/worker/checkpoint/checkpoint_image.h"

#include <map>
#include <string>
#include <utility>

#include "server/worker/memory/host_pages.h"

namespace gpupool::worker {
namespace {

bool is_shared(CheckpointImage::Piece& piece) {
  return piece.shared() && *piece.shared() != 0;
}

}  // namespace

CUresult CheckpointImage::copy_all(uint64_t most) {
  uint64_t bytes = 0;
  for (const auto& piece : pieces_) bytes += piece->bytes;
  if (bytes > most) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const auto& piece : pieces_) {
    if (is_shared(*piece)) {
      auto suspended = exported_handles_.suspend(piece->handle());
      if (!suspended) return CUDA_ERROR_NOT_PERMITTED;
      piece->suspended = std::move(*suspended);
    }
    if (piece->borrowed || piece->bytes == 0) continue;
    piece->host = take_host_pages(piece->bytes);
    if (!piece->host) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult result = piece->copy_out(piece->host); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult CheckpointImage::save_and_free(Pieces pieces, uint64_t most) {
  pieces_ = std::move(pieces);
  CUresult result = copy_all(most);  // copies everything before the first piece leaves
  size_t begun = 0;
  while (result == CUDA_SUCCESS && begun < pieces_.size()) result = pieces_[begun++]->leave_device();
  if (result != CUDA_SUCCESS) {
    while (begun > 0) {
      Piece& piece = *pieces_[--begun];
      const CUresult back = piece.restore_to_device(piece.host);
      if (back == CUDA_SUCCESS) continue;
      outbox_.end("cannot restore device memory after a failed checkpoint: CUDA error " +
                  std::to_string(back));
      break;
    }
    for (const auto& piece : pieces_) settle(*piece, false);
    pieces_.clear();
    return result;
  }
  for (const auto& piece : pieces_) {
    piece->on_uncharged();
    piece->borrowed = false;
    ledger_.note_checkpointed(piece->device, static_cast<int64_t>(piece->charged));
    if (is_shared(*piece))
      ledger_.leave(piece->device, piece->charged, *piece->shared());
    else
      ledger_.release(piece->device, piece->charged);
  }
  out_ = true;
  return CUDA_SUCCESS;
}

// Reserves the quota of all pieces, or none of it.
CUresult CheckpointImage::reserve() {
  std::map<int, uint64_t> wanted;
  for (const auto& piece : pieces_) wanted[piece->device] += piece->charged;
  for (auto next = wanted.begin(); next != wanted.end(); ++next) {
    if (ledger_.reserve(next->first, next->second)) continue;
    for (auto got = wanted.begin(); got != next; ++got) ledger_.release(got->first, got->second);
    ledger_.count_refusal();  // another program asked for the restore
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult CheckpointImage::restore() {
  if (const CUresult result = reserve(); result != CUDA_SUCCESS) return result;
  CUresult result = CUDA_SUCCESS;
  size_t rest = pieces_.size();
  while (result == CUDA_SUCCESS && rest > 0) {
    Piece& piece = *pieces_[--rest];
    result = piece.restore_to_device(piece.host);
  }
  if (result != CUDA_SUCCESS) {
    for (; rest < pieces_.size(); ++rest) {
      const CUresult off = pieces_[rest]->leave_device();
      if (off != CUDA_SUCCESS)
        outbox_.end("cannot free device memory after a failed restore: CUDA error " + std::to_string(off));
    }
    for (const auto& piece : pieces_) ledger_.release(piece->device, piece->charged);
    return result;
  }
  for (const auto& piece : pieces_) settle(*piece, true);
  pieces_.clear();
  out_ = false;
  return CUDA_SUCCESS;
}

// Finishes a piece that is on the device: frees its host copy and lets other sessions import it again.
void CheckpointImage::settle(Piece& piece, bool was_out) {
  if (was_out) ledger_.note_checkpointed(piece.device, -static_cast<int64_t>(piece.charged));
  if (was_out && is_shared(piece) && !ledger_.share(piece.device, piece.charged, *piece.shared())) {
    // The tenant's limit of shared memory is reached: names that the program gave out become invalid.
    *piece.shared() = 0;
    exported_handles_.forget(std::move(piece.suspended));
  } else {
    exported_handles_.resume(std::move(piece.suspended), piece.handle());
  }
  release_host(piece);
  piece.on_charged();
}

void CheckpointImage::release_host(Piece& piece) {
  if (piece.host && !piece.borrowed) release_host_pages(piece.host, piece.bytes);
  piece.host = nullptr;
}

void CheckpointImage::drop() {
  for (const auto& piece : pieces_) {
    if (out_) ledger_.note_checkpointed(piece->device, -static_cast<int64_t>(piece->charged));
    release_host(*piece);
  }
  pieces_.clear();
  out_ = false;
}

}  // namespace gpupool::worker
