// Control messages between poold and a worker, over a socket pair (AF_UNIX, SOCK_SEQPACKET), one packet per
// message. WorkerPool uses them on poold's thread, worker::Control in the worker.
//
// Start: the worker sends `ready` with its control::Devices, or `failed` with a reason. When a client
// arrives, poold sends `account` (the tenant's quota::Account as a descriptor, and the session's
// multiprocessor groups of each GPU as quota::Groups of 8 bytes each; none: whole GPUs), `code` and
// `cache_folder` if there are any, and `session` (the client's socket and Hello).
// While the session runs: `bulk` brings a further socket of the session, `end_session` ends it, `turn`
// reports a change of the session page's turn words, `dump_wanted` asks what the session is doing.
// Module images are sealed memory files (sealed_file.h). The worker asks for one by name (`image_wanted`), or
// offers one (`image_offered`), fills and seals the file that poold sends, and deposits it (`image_deposit`).
// `image_damaged` reports that an image does not match its name.
// Memory shared by sessions of one tenant: poold passes the question from one worker to the other and gives
// each an end of a socket pair, which carries the memory's descriptor.
//
// When either process ends, the other sees the end of its socket. Both are of the same build, so a packet is
// a plain struct; poold still validates it, because a worker runs a client's code paths. Descriptors go only
// from poold to a worker: closing a received one could block poold.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "common/result.h"
#include "protocol/wire/checkpoint.h"
#include "protocol/wire/images.h"
#include "protocol/wire/peers.h"

namespace gpupool::server {

// Descriptor numbers in the worker.
constexpr int kControlDescriptor = 3;
constexpr int kLogDescriptor = 4;          // socket to poold; also stdout and stderr (worker_log.h)
constexpr int kSessionPageDescriptor = 5;  // quota::SessionPage
constexpr int kCodeDescriptor = 6;         // once it has a client: the tenant's compiled code (tenant_code.h)
// Once it has a client: the tenant's folder for the NVIDIA driver's cache (cache_folders.h).
constexpr int kCacheDescriptor = 7;

// Limit for a client's Hello. wire::kMaxHelloBytes is much larger, because it also applies to the reply.
constexpr uint32_t kMaxClientHelloBytes = 64 * 1024;
constexpr uint32_t kMaxControlPayload = kMaxClientHelloBytes;

// A worker's exit status. poold logs it as the reason for the session's end.
enum WorkerExit : int {
  kWorkerOrderly = 0,
  kWorkerSessionFailed = 1,    // run_session(): connection lost, or ended by the server
  kWorkerDeviceUnusable = 10,  // poold has received the reason
  kWorkerControlBroken = 11,
  kWorkerHandoverFailed = 12,  // the client disconnected before the session began
  kWorkerPooldGone = 13,
  kWorkerUsage = 64,
};

enum class ControlKind : uint32_t {
  ready = 1,
  failed = 2,
  session = 3,
  bulk = 4,
  account = 5,
  end_session = 6,     // poold -> worker; payload: the reason
  turn = 7,            // worker -> poold: the session page's turn words have changed
  memory_needed = 8,   // worker -> poold: the GPU is full; other sessions' memory should move to host memory
  move_out = 9,        // poold -> worker; answered by moved_out
  moved_out = 10,      // memory_bytes: bytes moved
  room_patience = 11,  // poold -> worker: how long to wait for room, if not the usual time
  image_wanted = 16,   // worker -> poold; answered by image_found or image_missing
  image_found = 17,    // with the image file
  image_missing = 18,
  image_deposit = 19,  // worker -> poold: the file of image_space is filled and sealed
  image_damaged = 20,
  // Worker -> poold -> owning session's worker, with a socket for the descriptor. The answer, share_found or
  // share_missing, takes the same way back.
  share_wanted = 21,
  share_found = 22,  // for memory, the asking worker gets the socket that carries its descriptor
  share_missing = 23,
  // poold -> worker: lock, checkpoint, restore or unlock (checkpoint.h). Answered by state_changed.
  change_state = 24,
  state_changed = 25,
  code = 27,          // poold -> worker, between account and session: file of compiled code, if there is one
  cache_folder = 30,  // poold -> worker, between account and session: driver cache folder, if there is one
  dump_wanted = 28,   // poold -> worker: describe what the session is doing; answered by dump
  dump = 29,          // payload: admin::WorkerDump
  // Worker -> poold: connect to another server for a copy. Answered by peer_found or peer_missing.
  peer_wanted = 31,
  peer_found = 32,  // with the socket; the other server has proved that it holds the copy's key
  peer_missing = 33,
  image_offered = 34,  // worker -> poold: an image to cache; answered by image_space or image_unwanted
  image_space = 35,    // with a file to fill
  image_unwanted = 36,
  // poold -> worker: give up a lock not yet held. state_changed then returns CUDA_ERROR_NOT_READY.
  stop_locking = 26,
};

struct ControlHeader {
  ControlKind kind = ControlKind::ready;
  // Payload: failed, end_session: text; dump: admin::WorkerDump; account: quota::Groups; ready: Devices;
  // session: Hello.
  uint32_t payload_bytes = 0;
  // For session:
  uint64_t session_number = 0;
  int64_t dead_peer_timeout_ms = 0;
  std::array<char, 16> transport{};  // scheme, zero-terminated; also of bulk
  std::array<char, 16> session_id{};
  std::array<char, 32> resume_token{};
  std::array<char, 32> bulk_token{};
  std::array<char, 32> tls_secret{};  // also of bulk; for TLS connections
  // For the kinds named at each field:
  uint32_t from_peer = 0;       // bulk: 1 for another server's connection, for copy peer.copy
  wire::PeerTarget peer{};      // peer_wanted
  uint64_t peer_request = 0;    // peer_wanted and its answers
  uint32_t account_slot = 0;    // account: the session's slot
  uint32_t oversubscribes = 0;  // session: device memory may move to host memory; memory_needed is answered
  int32_t gpu = 0;              // memory_needed, move_out, moved_out
  uint64_t memory_bytes =
      0;  // memory_needed, move_out, moved_out; move_out: bytes to move, as far as possible
  uint64_t memory_most = 0;        // move_out: upper limit of bytes to move
  uint64_t memory_keep = 0;        // move_out: bytes that must stay on the GPU
  uint32_t memory_at_once = 0;     // move_out: 1: between two commands; 0: only when the session is idle
  uint32_t memory_restores = 0;    // memory_needed: 1: to bring memory back from host memory
  uint64_t memory_question = 0;    // memory_needed and room_patience
  int64_t memory_patience_ms = 0;  // room_patience; 0: there will be no room
  uint32_t gpu_count = 0;          // session: length of `gpus`, the only ones the client sees; 0: all
  std::array<uint8_t, 64> gpus{};  // indices in the device library
  uint64_t image_bytes = 0;  // session: largest image that poold keeps, 0: none; image_*: this image's size
  wire::ImageDigest image_name{};          // image_*
  uint64_t image_request = 0;              // image_*: number of a question and its answer
  uint64_t server_id = 0;                  // session: poold's random number
  std::array<uint8_t, 16> share_secret{};  // share_wanted
  uint64_t share_session = 0;              // share_wanted: the owning session
  uint64_t share_requester = 0;            // share_*: the asking session; poold sets it
  uint64_t share_request = 0;              // share_*: the asking worker's number
  uint32_t share_is_memory = 0;            // share_found: 1: memory, 0: an event
  uint64_t share_handle_types =
      0;                      // share_found, memory: handle types; `gpu` and `memory_bytes` are set, too
  uint64_t share_charge = 0;  // share_found, memory: the ledger's charge (quota/ledger.h)
  std::array<char, 64> share_event{};  // share_found, event: CUipcEventHandle
  // change_state, state_changed, stop_locking. In change_state, memory_most limits the host memory for it.
  uint64_t state_question = 0;
  wire::CheckpointAction state_action = wire::CheckpointAction::find;  // change_state
  int32_t state_result = 0;                                            // state_changed: CUresult
  uint64_t dump_question = 0;                                          // dump_wanted, dump
};
static_assert(std::is_trivially_copyable_v<ControlHeader>);

struct ControlMessage {
  ControlHeader header;
  std::string payload;
  int descriptor = -1;  // owned by the receiver
};

// `descriptor` stays the caller's; -1: none. Never blocks. ErrorCode::limit: the other process does not read
// its socket.
Result<void> send_control(int socket, ControlHeader header, const std::string& payload, int descriptor);
// Blocks as the socket does. ErrorCode::closed: the other process has ended; malformed: the packet is not one
// message with at most one descriptor. A descriptor is lost if this process has too many open.
Result<ControlMessage> receive_control(int socket);
// Receives in poold, which accepts no descriptors: a message with descriptors stays in the socket and is
// ErrorCode::malformed. Never blocks; ErrorCode::limit: there is no message.
Result<ControlMessage> receive_worker_control(int socket);

}  // namespace gpupool::server
