// The fixed parts of the wire format (docs/wire-format.md), shared by client library, poold and workers.
// Little-endian, as is every machine that CUDA supports.
//
// A connection starts with one Preamble + Hello from the client and one Preamble + HelloReply from the server
// (Protobuf, protocol/control/hello.proto). Then the client sends commands and the server sends messages,
// each a fixed header followed by `length` bytes.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpupool::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire format is the memory format of little-endian hosts");

constexpr uint32_t kMagic = 0x4c4f4f50;  // "POOL"
constexpr uint16_t kProtocolVersion =
    1;  // raised when an older peer could misunderstand; ids are append-only
constexpr uint32_t kMaxHelloBytes = 1u << 20;
// Longest command or message body. Longer data travels in parts (copy_to_device, upload_part).
constexpr uint32_t kMaxBodyBytes = 4u << 20;
constexpr uint32_t kBulkChunkBytes = 1u << 20;  // most bytes of a copy in one frame

struct Preamble {
  uint32_t magic = kMagic;
  uint16_t protocol_version = kProtocolVersion;
  uint16_t reserved = 0;
  uint32_t length = 0;  // bytes of Protobuf that follow, at most kMaxHelloBytes
};
static_assert(sizeof(Preamble) == 12);

constexpr uint32_t kMostMonitoredSessions = 1024;  // in a MonitorState (protocol/control/monitor.proto)

// Client to server.
struct CommandHeader {
  uint32_t length = 0;    // bytes after this header
  uint16_t id = 0;        // row of the call table (below kFirstCommand) or a Command
  uint16_t flags = 0;     // kWantsReply
  uint64_t context = 0;   // handle of the calling thread's current context, 0: none
  uint64_t sequence = 0;  // 1, 2, 3, ... without gaps within a session
};
static_assert(sizeof(CommandHeader) == 24);
constexpr uint16_t kWantsReply = 1;

// Server to client.
enum class MessageKind : uint16_t {
  reply = 1,            // answer to the command with this sequence number
  device_data = 2,      // part of a device-to-host copy: body is DeviceData + bytes
  standard_output = 3,  // what device code printed
  standard_error = 4,   // assertion texts
  // A host function is due: body is u64 callback id; with an error: it will not be called (commands.h).
  host_callback = 5,
  pong = 6,  // answers a ping, or (sequence 0) shows that a long command is still running
  end = 7,   // the server ends the session; body is a text that says why
  // A quota has refused a request: body is QuotaRefusal and the quota's name (refusal.h). Only to clients
  // that take it.
  quota_refusal = 8,
  // poold asks the client to migrate its session: body is MigrationWish and the other server's address
  // (migration.h). Only to clients that can migrate.
  migration_wish = 9,
  // What the worker measures (timeline.h). Only to clients that want it.
  timeline = 10,
};
struct MessageHeader {
  uint32_t length = 0;  // bytes after this header
  MessageKind kind = MessageKind::reply;
  uint16_t flags = 0;  // kMemoryLimited, kSendAwaitRoom
  int32_t result = 0;  // CUresult
  // In a session that can be resumed: the low 32 bits of the number of bytes that the worker has received
  // since its HelloReply; else 0.
  uint32_t acknowledged = 0;
  uint64_t sequence = 0;  // the command this belongs to, 0: none
  uint64_t retired = 0;   // frees up to this sequence number have taken effect: their addresses may be reused
};
static_assert(sizeof(MessageHeader) == 32);
// Flag of messages: the tenant has a memory quota, so the client keeps less freed memory mapped for reuse.
constexpr uint16_t kMemoryLimited = 1;
// Flag of messages: many bytes of commands wait for their streams, so the client sends await_room before it
// gives a stream work.
constexpr uint16_t kSendAwaitRoom = 2;

// Bulk connections carry the pieces of announced copies, in both directions, each behind a BulkHeader.
constexpr uint32_t kMaxBulkConnections = 8;  // per session
struct BulkHeader {
  uint32_t length = 0;  // bytes after this header; every piece but the last of a copy has bulk_piece_bytes()
  uint16_t flags = 0;  // kBulkCompressed: the bytes are an LZ4 block, shorter than the piece; or kBulkCopyKey
  uint16_t reserved = 0;
  uint64_t copy = 0;    // sequence number of the command that announced the copy
  uint64_t offset = 0;  // of the piece in the packed rows
};
static_assert(sizeof(BulkHeader) == 24);
constexpr uint16_t kBulkCompressed = 1;
// From a peer only: no piece, but the key (wire::CopyKey) of a copy whose pieces follow on this connection.
// `offset` is 0.
constexpr uint16_t kBulkCopyKey = 2;

// No piece: on a connection that can be resumed, `offset` is the number of bytes that the sender of this
// header has received on it. The other fields are 0.
constexpr uint16_t kBulkAcknowledge = 4;

// Commands that are not rows of the call table. Ids are append-only.
constexpr uint16_t kFirstCommand = 0x8000;
enum class Command : uint16_t {
#define COMMAND(id, name) name = id,
#include "protocol/wire/commands.def"
#undef COMMAND
};

// True for structs that can be sent as they lie in memory.
template <typename T, size_t bytes>
inline constexpr bool kIsBody = sizeof(T) == bytes && std::is_trivially_copyable_v<T>;

}  // namespace gpupool::wire
