// Bodies of the commands that copy data: behind the command, on bulk connections, from or to client memory
// that the server accesses by RDMA, or in pinned memory that the server maps too. Conventions as in
// commands.h.
#pragma once
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::wire {

// copy_to_device: `rows` packed rows of `width` bytes follow; row r goes to destination + r * pitch.
struct CopyToDevice {
  uint64_t stream;
  uint64_t destination;
  uint64_t pitch;
  uint32_t width;  // width * rows <= kBulkChunkBytes
  uint32_t rows;
  uint32_t flags;
  uint32_t reserved;
};
// Flag of a copy that its caller regards as done when the call returns: later work in any stream of the
// context waits for it.
constexpr uint32_t kCopyOrdersStreams = 1;
// Flag of a copy that does not wait for kCopyOrdersStreams copies, because another stream waits for it,
// perhaps the one that delays them.
constexpr uint32_t kCopyPassesOthers = 2;
// copy_from_device: the packed rows come back in DeviceData messages, in order. A reply ends the copy, also
// without kWantsReply; then an error at its start is reported by the next awaited reply, as for any command.
struct CopyFromDevice {
  uint64_t stream;
  uint64_t source;
  uint64_t pitch;
  uint64_t width;
  uint64_t rows;
};
struct DeviceData {  // then the bytes; the message's sequence number names the copy
  uint64_t offset;   // in the packed rows
};

// bulk_to_device, bulk_from_device: the packed rows travel in pieces (BulkHeader) on the session's bulk
// connections, in any order. To the device: the client sends the pieces right after the command. From the
// device: a reply on the command connection, after the last piece, ends the copy, also without kWantsReply;
// if it has an error, pieces may be missing.
struct BulkCopy {
  uint64_t stream;
  uint64_t device;  // address
  uint64_t pitch;   // of the rows in device memory
  uint64_t width;   // width * rows <= kMaxBulkCopyBytes; with several rows, width <= kBulkChunkBytes
  uint64_t rows;
  uint32_t flags;  // as CopyToDevice::flags; 0 for copies from the device
  uint32_t reserved;
};
constexpr uint64_t kMaxBulkCopyBytes = uint64_t{1} << 30;
// bulk_to_peer: sent by clients older than copy_to_peer (peers.h). Three texts follow: the other server's
// address, the id of the session there, its bulk token. Reply: always CUDA_ERROR_NOT_SUPPORTED; the client
// then moves the data itself.
struct PeerCopy {
  BulkCopy rows;  // flags 0
  uint64_t copy;  // sequence number of bulk_to_device on the other server
};
// cancel_bulk: ends a copy to the device whose data will not come, or not completely; its stream goes on.
// Closes the connections opened by other servers.
struct CancelBulk {
  uint64_t copy;  // sequence number of its bulk_to_device
};
// direct_to_device, direct_from_device: the packed rows are in memory that the client has registered for the
// connection (transport::DirectMemory). The server reads it, at the latest when the stream gets there, or
// writes it. A reply ends the copy, also without kWantsReply: all of the memory has been read or written.
// CUDA_ERROR_NOT_SUPPORTED: the connection has no direct memory. Memory that is not registered under the key
// ends the session.
struct DirectCopy {
  BulkCopy rows;    // flags as for the bulk commands
  uint64_t memory;  // address in the client, of rows.width * rows.rows bytes
  uint32_t key;     // remote key of the registered memory
  uint32_t reserved;
};
// Bytes of the pieces that packed rows are cut into: whole rows if there are several.
constexpr uint64_t bulk_piece_bytes(uint64_t width, uint64_t rows) {
  return rows == 1 ? kBulkChunkBytes : kBulkChunkBytes / width * width;
}

// share_host_memory: pinned memory of the program that the worker maps too, for the context that the header
// names. Its descriptor (a memfd of exactly `size` bytes, sealed against shrinking) was passed before. Only
// where the transport shares memory. Reply: SharedHostMemoryAt, even if its result is the error of an earlier
// command.
struct ShareHostMemory {
  uint64_t memory;  // number minted by the client; not a handle
  uint64_t size;
  uint64_t address;  // where the program has mapped it, and kernels should find it
};
struct SharedHostMemoryAt {
  uint64_t memory;
  uint64_t device;  // address for kernels; 0: they cannot use the memory
};
// release_host_memory: no later command names the memory; copies queued before still use it.
struct ReleaseHostMemory {
  uint64_t memory;
};
// copy_shared: copies between the device and shared host memory of the stream's context, which is read or
// written when the stream gets there.
struct CopyShared {
  uint64_t stream;
  uint64_t device;
  uint64_t device_pitch;
  uint64_t memory;
  uint64_t offset;  // in the memory
  uint64_t host_pitch;
  uint64_t width;
  uint64_t rows;
  uint32_t to_device;  // 1: to the device; 0: from it
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
