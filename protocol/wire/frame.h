// The fixed parts of the wire format (docs/wire-format.md). Little-endian, as every machine that CUDA runs on.
//
// A connection starts with one Preamble + Hello from the client and one Preamble + HelloReply from the server
// (Protobuf, protocol/control/hello.proto). Then the client sends commands and the server sends messages, each a fixed
// header followed by `length` bytes.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpupool::wire {

static_assert(std::endian::native == std::endian::little, "the wire format is the memory format of little-endian hosts");

constexpr uint32_t kMagic = 0x4c4f4f50;     // "POOL"
constexpr uint16_t kProtocolVersion = 1;    // raised when an older peer could misunderstand; ids are append-only
constexpr uint32_t kMaxHelloBytes = 1u << 20;
// Longest command or message body. Longer data travels in parts (copy_to_device, upload_part).
constexpr uint32_t kMaxBodyBytes = 4u << 20;
constexpr uint32_t kBulkChunkBytes = 1u << 20;  // how much of a copy one frame carries at most

struct Preamble {
  uint32_t magic = kMagic;
  uint16_t protocol_version = kProtocolVersion;
  uint16_t reserved = 0;
  uint32_t length = 0;  // bytes of Protobuf that follow, at most kMaxHelloBytes
};
static_assert(sizeof(Preamble) == 12);

constexpr uint32_t kMostMonitoredSessions = 1024;  // that a MonitorState (protocol/control/monitor.proto) tells of

// Client to server.
struct CommandHeader {
  uint32_t length = 0;    // bytes after this header
  uint16_t id = 0;        // row of the call table (below kFirstCommand) or a Command
  uint16_t flags = 0;     // kWantsReply
  uint64_t context = 0;   // handle of the context that is current for the calling thread, 0: none
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
  host_callback = 5,    // a host function's turn has come in its stream: body is u64 callback id; with an error: it will not come (commands.h)
  pong = 6,
  end = 7,              // the server ends the session; body is a text that says why
};
struct MessageHeader {
  uint32_t length = 0;    // bytes after this header
  MessageKind kind = MessageKind::reply;
  uint16_t flags = 0;     // kMemoryLimited, kBacklogLong
  int32_t result = 0;     // CUresult
  uint32_t reserved = 0;
  uint64_t sequence = 0;  // the command this belongs to, 0: none
  uint64_t retired = 0;   // frees up to this sequence number have taken effect: their addresses may be used again
};
static_assert(sizeof(MessageHeader) == 32);
// As of this message the tenant has a memory quota: the client keeps less of what was freed mapped for later.
constexpr uint16_t kMemoryLimited = 1;
// As of this message many bytes of commands wait for their streams: the client sends await_room before it gives a stream work.
constexpr uint16_t kBacklogLong = 2;

// On a bulk connection, in both directions: pieces of the copies that commands have announced.
constexpr uint32_t kMaxBulkConnections = 8;  // of one session
struct BulkHeader {
  uint32_t length = 0;    // bytes after this header; every piece but the last of a copy has bulk_piece_bytes()
  uint16_t flags = 0;     // kBulkCompressed: the piece as an LZ4 block, shorter than the piece itself; kBulkCopyKey
  uint16_t reserved = 0;
  uint64_t copy = 0;      // sequence number of the command that announced it
  uint64_t offset = 0;    // of the piece in the packed rows
};
static_assert(sizeof(BulkHeader) == 24);
constexpr uint16_t kBulkCompressed = 1;
// From a peer only: no piece, but the key (wire::CopyKey) of a copy whose pieces follow on this connection; offset 0.
constexpr uint16_t kBulkCopyKey = 2;

// Commands beside the call table: what one driver call has no row for. Ids are append-only.
constexpr uint16_t kFirstCommand = 0x8000;
enum class Command : uint16_t {
#define COMMAND(id, name) name = id,
#include "protocol/wire/commands.def"
#undef COMMAND
};

// What a body must be to travel as it lies in memory.
template <typename T, size_t bytes>
inline constexpr bool kIsBody = sizeof(T) == bytes && std::is_trivially_copyable_v<T>;

}  // namespace gpupool::wire
