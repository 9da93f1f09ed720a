// Bodies of the commands that move bytes: copies that travel with the command, on bulk connections, by memory that the
// server reaches itself, or by pinned memory that it maps too. As in commands.h.
#pragma once
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// copy_to_device: `rows` rows of `width` bytes, packed, follow; row r goes to destination + r * pitch.
struct CopyToDevice {
  uint64_t stream;
  uint64_t destination;
  uint64_t pitch;
  uint32_t width;       // width * rows <= kBulkChunkBytes
  uint32_t rows;
  uint32_t flags;
  uint32_t reserved;
};
// The caller believes the copy done when its call returns: work that any stream of the context gets later comes after it.
constexpr uint32_t kCopyOrdersStreams = 1;
// Such copies do not hold this one up: another stream waits for it, perhaps the very one that they are behind.
constexpr uint32_t kCopyPassesOthers = 2;
// copy_from_device: rows come back packed in DeviceData messages, in order; a reply ends the transfer, also without
// kWantsReply (an error at its start is then told by the next reply that is waited for, as for any other command).
struct CopyFromDevice {
  uint64_t stream;
  uint64_t source;
  uint64_t pitch;
  uint64_t width;
  uint64_t rows;
};
struct DeviceData {     // then the bytes; the message's sequence number names the copy
  uint64_t offset;      // in the packed rows
};

// bulk_to_device, bulk_from_device: the rows travel packed, in pieces (BulkHeader) on the session's bulk connections, in any
// order. To the device: the client sends the pieces right behind the command. From the device: a reply on the command
// connection, sent after the last piece, ends the copy, also without kWantsReply; with an error, pieces may be missing.
struct BulkCopy {
  uint64_t stream;
  uint64_t device;      // address
  uint64_t pitch;       // of the rows in device memory
  uint64_t width;       // width * rows <= kMaxBulkCopyBytes; with more than one row, at most kBulkChunkBytes
  uint64_t rows;
  uint32_t flags;       // as CopyToDevice's; 0 from the device
  uint32_t reserved;
};
constexpr uint64_t kMaxBulkCopyBytes = uint64_t{1} << 30;
// bulk_to_peer: of clients before copy_to_peer (peers.h). Behind it three texts: the other server's address, the session there, its bulk token.
// Reply: CUDA_ERROR_NOT_SUPPORTED, upon which the client moves the data itself.
struct PeerCopy {
  BulkCopy rows;        // flags 0
  uint64_t copy;        // sequence number of the announcement there
};
// cancel_bulk: a copy to the device whose data will not come, or not all of it; its stream goes on. Connections that other
// servers have opened are closed.
struct CancelBulk {
  uint64_t copy;
};
// direct_to_device, direct_from_device: the rows lie packed in memory that the client has registered for its connection
// (transport::DirectMemory), and the server reads it there, at the latest when the stream gets there, or writes it. A reply ends the copy, also
// without kWantsReply: the memory has been read, or all of it is written. CUDA_ERROR_NOT_SUPPORTED: the connection cannot.
// What cannot be read or written under this key ends the session.
struct DirectCopy {
  BulkCopy rows;        // flags as for the bulk commands
  uint64_t memory;      // address in the client, of rows.width * rows.rows bytes
  uint32_t key;
  uint32_t reserved;
};
// How the packed rows are cut: whole rows where there are several.
constexpr uint64_t bulk_piece_bytes(uint64_t width, uint64_t rows) {
  return rows == 1 ? kBulkChunkBytes : kBulkChunkBytes / width * width;
}

// share_host_memory: pinned memory of the program that the worker maps too, for the context that the header names. Its
// descriptor (a memfd of exactly `size` bytes, sealed against shrinking) was sent beside the bytes before. Only where the
// transport shares memory. Reply: SharedHostMemoryAt, also when its result is an earlier command's error.
struct ShareHostMemory {
  uint64_t memory;      // minted by the client, apart from handles
  uint64_t size;
  uint64_t address;     // where the program has it, and kernels should
};
struct SharedHostMemoryAt {
  uint64_t memory;
  uint64_t device;      // its address for kernels; 0: they cannot use it
};
// release_host_memory: no command will name it any more; copies that were queued before still use it.
struct ReleaseHostMemory {
  uint64_t memory;
};
// copy_shared: between the device and shared host memory of the stream's context, in the order of the stream: the memory is
// read or written when the stream gets there.
struct CopyShared {
  uint64_t stream;
  uint64_t device;
  uint64_t device_pitch;
  uint64_t memory;
  uint64_t offset;      // in the memory
  uint64_t host_pitch;
  uint64_t width;
  uint64_t rows;
  uint32_t to_device;   // 1: to the device; 0: from it
  uint32_t reserved;
};

static_assert(kIsBody<CopyToDevice, 40>);
static_assert(kIsBody<CopyFromDevice, 40>);
static_assert(kIsBody<BulkCopy, 48>);
static_assert(kIsBody<PeerCopy, 56>);
static_assert(kIsBody<DirectCopy, 64>);
static_assert(kIsBody<CancelBulk, 8>);
static_assert(kIsBody<ShareHostMemory, 24>);
static_assert(kIsBody<SharedHostMemoryAt, 16>);
static_assert(kIsBody<ReleaseHostMemory, 8>);
static_assert(kIsBody<CopyShared, 72>);

}  // namespace gpupool::wire
