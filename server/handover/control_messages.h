// The structs of the messages between poold and its workers, one for each kind of control.def or for several
// kinds with the same fields. handover.h sends and receives them. poold checks the values that a worker
// sends.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "protocol/wire/checkpoint.h"
#include "protocol/wire/images.h"
#include "protocol/wire/peers.h"

namespace gpupool::server {

enum class ControlKind : uint32_t {
#define CONTROL(id, kind, body) kind = id,
#include "server/handover/control.def"
#undef CONTROL
};

constexpr size_t kMostMigrationText = 1024;  // bytes of the payloads of migrate and migration_ended

namespace packet {

struct NoBody {};

using Transport = std::array<char, 16>;  // scheme, zero-terminated
using TlsSecret = std::array<char, 32>;  // for TLS connections

struct Session {
  uint64_t number = 0;
  uint64_t server_id = 0;      // poold's random number
  uint64_t largest_image = 0;  // bytes of the largest image that poold keeps; 0: none
  int64_t dead_peer_timeout_ms = 0;
  int64_t resume_timeout_ms = 0;  // 0: the session ends with its connection
  Transport transport{};
  std::array<char, 16> id{};
  std::array<char, 32> resume_key{};
  std::array<char, 32> bulk_token{};
  TlsSecret tls_secret{};
  uint32_t oversubscribes = 0;     // device memory may move to host memory; memory_needed is answered
  uint32_t gpu_count = 0;          // length of `gpus`, the only ones the client sees; 0: all
  std::array<uint8_t, 64> gpus{};  // indices in the device library
};
// Transport of a stream socket of poold's: it brings the file of a suspended session, as another server
// would.
constexpr Transport kFromFile{'f', 'i', 'l', 'e'};
struct Bulk {
  uint64_t copy = 0;       // of another server's connection: the copy
  uint32_t from_peer = 0;  // 1: another server's connection
  uint32_t link = 0;       // Hello.bulk_link: if not 0, the client can resume the connection
  Transport transport{};
  TlsSecret tls_secret{};
};
struct Resume {
  uint64_t received = 0;  // bytes that the client has received
  uint64_t link = 0;      // Hello.bulk_link of the connection that is resumed
  Transport transport{};
  TlsSecret tls_secret{};
};
struct ConnectionBroken {
  uint64_t link = 0;    // as in Resume
  uint64_t closed = 0;  // 1: the client's side has closed it, so the client may have ended
};
struct ConnectionResumed {
  uint64_t link = 0;
  uint64_t resent = 0;  // bytes that the worker sent again
};
struct Account {
  uint32_t slot = 0;  // the session's slot
};

struct MemoryNeeded {
  uint64_t question = 0;
  uint64_t bytes = 0;
  int32_t gpu = 0;
  uint32_t restores = 0;  // 1: to bring memory back from host memory
};
struct MoveOut {
  uint64_t bytes = 0;  // to move, as far as possible
  uint64_t most = 0;   // upper limit of bytes to move
  uint64_t keep = 0;   // bytes that must stay on the GPU
  int32_t gpu = 0;
  uint32_t at_once = 0;  // 1: between two commands; 0: only when the session is idle
};
struct MovedOut {
  uint64_t bytes = 0;
  int32_t gpu = 0;
  uint32_t reserved = 0;
};
struct RoomPatience {
  uint64_t question = 0;    // of memory_needed
  int64_t patience_ms = 0;  // 0: there will be no room
};

// Why a session wants the memory of abandoned ones.
enum class ReclaimReason : uint32_t {
  gpu_full,
  quota_full,
  report,  // its program asks how much memory is free
};
struct Reclaim {
  uint64_t question = 0;
  int32_t gpu = 0;
  ReclaimReason reason = ReclaimReason::gpu_full;
};
struct Reclaimed {
  uint64_t question = 0;
  uint64_t sessions = 0;  // that have ended; 0: none was abandoned
};

struct Image {
  uint64_t bytes = 0;
  wire::ImageDigest name{};
};
struct ImageQuestion {
  uint64_t request = 0;  // number of a question and its answer
  uint64_t bytes = 0;
  wire::ImageDigest name{};
};

// `request`: the asking worker's number.
struct ShareWanted {
  std::array<uint8_t, 16> secret{};
  uint64_t session = 0;    // owning session
  uint64_t requester = 0;  // asking session; poold sets it
  uint64_t request = 0;
};
struct ShareFound {
  uint64_t requester = 0;  // as in share_wanted
  uint64_t request = 0;
  // For memory:
  uint64_t bytes = 0;
  uint64_t handle_types = 0;
  uint64_t charge = 0;  // the ledger's charge (quota/ledger.h)
  int32_t gpu = 0;
  uint32_t is_memory = 0;        // 1: memory, 0: an event
  std::array<char, 64> event{};  // CUipcEventHandle
};
struct ShareMissing {
  uint64_t requester = 0;  // as in share_wanted
  uint64_t request = 0;
};

struct ChangeState {
  uint64_t question = 0;
  uint64_t host_bytes = 0;  // limit of host memory for a checkpoint
  wire::CheckpointAction action = wire::CheckpointAction::find;
  uint32_t reserved = 0;
};
struct StateChanged {
  uint64_t question = 0;
  int32_t result = 0;  // CUresult
  uint32_t reserved = 0;
};
struct StopLocking {
  uint64_t question = 0;
};

struct DumpQuestion {
  uint64_t question = 0;
};

struct Migrate {
  uint64_t number = 0;  // not 0
};
struct MigrationEnded {
  uint64_t number = 0;    // of migrate; 0: the client has migrated its session by itself
  uint32_t migrated = 0;  // 1: the session continues with another server, and ends here
  uint32_t reserved = 0;
};

struct PeerWanted {
  uint64_t request = 0;
  wire::PeerTarget target{};
};
struct PeerAnswer {
  uint64_t request = 0;
};

}  // namespace packet

template <ControlKind kind>
struct ControlBodyOf;
#define CONTROL(id, kind, body)             \
  template <>                               \
  struct ControlBodyOf<ControlKind::kind> { \
    using Type = packet::body;              \
  };
#include "server/handover/control.def"
#undef CONTROL
// The struct of a kind.
template <ControlKind kind>
using ControlBody = typename ControlBodyOf<kind>::Type;

template <class Body>
constexpr size_t kControlBodyBytes = std::is_empty_v<Body> ? 0 : sizeof(Body);

// The size of a kind's struct; nullopt: unknown kind.
constexpr std::optional<size_t> control_body_bytes(ControlKind kind) {
  switch (kind) {
#define CONTROL(id, kind, body) \
  case ControlKind::kind: return kControlBodyBytes<packet::body>;
#include "server/handover/control.def"
#undef CONTROL
  }
  return std::nullopt;
}

// True if Body is the kind's struct.
template <class Body>
constexpr bool is_control_body(ControlKind kind) {
  switch (kind) {
#define CONTROL(id, kind, body) \
  case ControlKind::kind: return std::is_same_v<Body, packet::body>;
#include "server/handover/control.def"
#undef CONTROL
  }
  return false;
}

// Structs are sent as they lie in memory, so they have no padding.
#define CONTROL(id, kind, body)                               \
  static_assert(std::is_trivially_copyable_v<packet::body> && \
                (std::is_empty_v<packet::body> || std::has_unique_object_representations_v<packet::body>));
#include "server/handover/control.def"
#undef CONTROL

constexpr size_t kMaxControlBody = std::max({
#define CONTROL(id, kind, body) kControlBodyBytes<packet::body>,
#include "server/handover/control.def"
#undef CONTROL
    size_t{0}});

}  // namespace gpupool::server
