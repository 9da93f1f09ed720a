// Decides how a copy is carried out, from facts about it alone: choose_route() for the program's copies
// (client/api/copy_run.cc gathers the facts and follows the route), choose_data_path() for data between
// this process and a server (client/copies/transfer.cc). If a step of the choice turns out to be impossible,
// the caller clears the fact that led to it and chooses again. Pure functions, any thread.
#pragma once
#include <cstdint>

#include "protocol/wire/frame.h"

namespace gpupool::client {

// Copies up to this size (bytes) are appended to the batch of commands instead of being sent from the
// caller's memory: a memcpy costs less than a system call.
constexpr uint64_t kInlineCopyBytes = 16 * 1024;
constexpr bool travels_inline(uint64_t bytes) {
  return bytes <= kInlineCopyBytes;
}

// The order of a copy relative to other work.
enum class CopyOrder : uint8_t {
  in_stream,
  before_all,     // later work of all streams waits for the copy, as if it had been synchronous
  passes_others,  // does not wait for earlier `before_all` copies
};
enum class Source : uint8_t {
  reusable,  // the host memory may be reused when the function returns
  kept,      // pinned memory, unchanged until the stream has passed the copy
};
enum class CopyDirection : uint8_t { in_host, to_device, from_device, on_devices };

// A copy of the program. "Host memory" is the end that is no device memory.
struct CopyFacts {
  CopyDirection direction = CopyDirection::in_host;
  uint64_t bytes = 0;
  bool synchronous = false;      // the call returns when the copy is complete
  bool capturing = false;        // some stream is being captured
  bool between_servers = false;  // an end is on another server than the stream
  bool other_device = false;     // between host and device: the memory is on another device than the stream
  bool two_devices = false;      // on_devices: the ends are on different devices
  bool legacy_stream = false;    // the copy is in a context's legacy stream
  bool reads_mirror = false;     // on_devices: the program may change the source itself, in host memory
  // True if each end in host memory is pinned. Only used for asynchronous copies.
  bool pinned = false;
  bool mapped = false;  // the server maps the host memory, too
  // to_device: an asynchronous copy may still write to the pinned allocation, or the client may have other
  // work that writes to the source before the stream reaches the copy.
  bool written = false;
  bool source_pending = false;
  // to_device, synchronous: it is not enough to order all later work behind the copy.
  bool must_complete = false;
};

struct CopyRoute {
  enum class Path : uint8_t {
    refused,          // not possible while the stream is captured: the capture becomes invalid
    recorded,         // becomes a node of the captured graph
    between_servers,  // server_copy.h
    in_host,          // by this thread
    on_server,        // a command
    mapped,           // a command; the server accesses the host memory
    sent,             // to the device
    sent_late,        // to the device, once the stream has reached the copy
    received,         // from the device
  };
  Path path = Path::in_host;
  // Before the copy, in this order: wait for the contexts of both ends (on_server); wait for the caller's
  // stream; continue in a stream of the memory's device; wait for the stream that is then used.
  bool contexts_first = false;
  bool stream_first = false;
  bool side_stream = false;
  bool source_first = false;
  CopyOrder order = CopyOrder::in_stream;  // of the last slice, if sent
  Source source = Source::reusable;
  bool wait = false;           // return when the copy is complete
  bool fetch_changes = false;  // received: afterwards fetch what the device has changed of registered memory
  bool join = false;           // afterwards order the caller's stream behind the side stream
  // Order the copy behind the legacy streams of both devices, and their later work behind the copy.
  bool legacy_streams = false;
};

CopyRoute choose_route(const CopyFacts& facts);

// Data between this process and a server, rows of one slice.
struct DataFacts {
  uint64_t bytes = 0;
  bool waits = false;          // to the device: until the memory has been read
  bool passes_others = false;  // must not queue behind the data of other copies
  bool packed = false;         // rows without gaps in host memory
  bool direct = false;         // an RDMA device can access the host memory, as far as is known
  bool bulk = false;           // there are bulk connections, as far as is known
};
enum class DataPath : uint8_t {
  direct,    // the server reads or writes the host memory by RDMA
  bulk,      // BulkConnections
  commands,  // the connection of the commands
};

// Minimum size in bytes for direct copies.
constexpr uint64_t kDirectFrom = 256 * 1024;
// Minimum size in bytes for bulk connections. Higher for copies that the caller waits for, which gain less.
constexpr uint64_t kBulkFrom = 256 * 1024;
constexpr uint64_t kWaitingBulkFrom = wire::kBulkChunkBytes + 1;

DataPath choose_data_path(const DataFacts& facts);

}  // namespace gpupool::client
