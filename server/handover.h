// What poold and a worker tell each other over the control socket (AF_UNIX, SOCK_SEQPACKET): one packet per
// message.
//
// worker -> poold: ready with its control::Devices, or failed with a text. poold -> worker: account, with the quota::Account of the client's tenant
// and which groups of each GPU's multiprocessors are the session's (quota::Groups, 8 bytes each; none: whole GPUs);
// session, with the client's descriptor and
// its Hello; bulk, with the descriptor of a further connection of that session; end_session. worker -> poold: turn. Module images go both ways as
// sealed memory files (sealed_file.h): the worker asks for one by name, poold answers; the worker offers one, fills and seals the file that it gets for
// it, and deposits it; or it
// says that what it got is not what the name says. What sessions of one tenant share goes from worker to worker: poold
// asks the one for the other, and gives each an end of a socket pair for the memory's descriptor. What a session is doing is asked by dump_wanted and told by dump. While the session runs, worker::Control receives what poold
// sends and WorkerPool::serve what the worker sends. The end of either process ends the other's socket. Both are the same build, so the packet is a
// plain struct; it is checked all the same, because a worker runs a client's code paths. Descriptors go from poold to a worker and never back:
// poold could not close one without waiting for whoever made it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "protocol/wire/checkpoint.h"
#include "protocol/wire/images.h"
#include "protocol/wire/peers.h"
#include "protocol/wire/result.h"

namespace gpupool::server {

constexpr int kControlDescriptor = 3;  // in the worker
constexpr int kLogDescriptor = 4;      // in the worker: the socket to poold that is its stdout and stderr, too (worker_log.h)
constexpr int kSessionPageDescriptor = 5;  // in the worker: its quota::SessionPage
constexpr int kCodeDescriptor = 6;         // in the worker, once it has a client: its tenant's file of compiled code (tenant_code.h)
constexpr int kCacheDescriptor = 7;        // likewise its tenant's folder for the cache of NVIDIA's driver (cache_folders.h)

// A client's Hello may be this long; much less than wire::kMaxHelloBytes, which also holds for the reply.
constexpr uint32_t kMaxClientHelloBytes = 64 * 1024;
constexpr uint32_t kMaxControlPayload = kMaxClientHelloBytes;

// A worker's exit status: what poold logs as the reason of a session's end.
enum WorkerExit : int {
  kWorkerOrderly = 0,
  kWorkerSessionFailed = 1,    // run_session: lost, or ended by the server
  kWorkerDeviceUnusable = 10,  // poold has been told why
  kWorkerControlBroken = 11,
  kWorkerHandoverFailed = 12,  // the client was gone before the session began
  kWorkerPooldGone = 13,
  kWorkerUsage = 64,
};

enum class ControlKind : uint32_t {
  ready = 1,
  failed = 2,
  session = 3,
  bulk = 4,
  account = 5,
  end_session = 6,  // with the reason
  turn = 7,         // worker -> poold: look at the session page's turns
  room_wanted = 8,  // worker -> poold: the device is full; memory of other sessions should be moved to host memory
  move_out = 9,     // poold -> worker, answered by:
  moved_out = 10,   // how much of it
  room_patience = 11,  // poold -> worker: how long room_wanted is worth waiting, where that is not as usual
  image_wanted = 16,  // worker -> poold, answered by:
  image_found = 17,   // with the file
  image_missing = 18,
  image_deposit = 19,  // worker -> poold: the file that came with image_space is filled and sealed
  image_damaged = 20,
  share_wanted = 21,  // worker -> poold -> the worker of the session that shares it, with a socket for the descriptor; answered the same way back by:
  share_found = 22,   // to the asker with the socket on which the descriptor came from the other worker, where it is memory
  share_missing = 23,
  change_state = 24,   // poold -> worker: lock, checkpoint, restore or unlock the session (checkpoint.h), answered by:
  state_changed = 25,
  code = 27,           // poold -> worker, between account and session, where there is one: the tenant's file of compiled code
  cache_folder = 30,   // likewise: the tenant's folder for the cache of NVIDIA's driver
  dump_wanted = 28,    // poold -> worker: what the session is doing, answered by:
  dump = 29,           // with an admin::WorkerDump
  peer_wanted = 31,    // worker -> poold: a connection to another server, for a copy; answered by:
  peer_found = 32,     // with the descriptor: the other server has proved that it holds the copy's key
  peer_missing = 33,
  image_offered = 34,  // worker -> poold: it has an image that poold may want to keep, answered by:
  image_space = 35,    // with a file to fill
  image_unwanted = 36,
  stop_locking = 26,   // poold -> worker: if it is not locked yet; then state_changed says CUDA_ERROR_NOT_READY
};

struct ControlHeader {
  ControlKind kind = ControlKind::ready;
  uint32_t payload_bytes = 0;   // failed, end_session: text; dump: admin::WorkerDump; account: quota::Groups; ready: Devices; session: Hello
  uint64_t session_number = 0;  // this and below: session
  int64_t dead_peer_timeout_ms = 0;
  std::array<char, 16> transport{};  // scheme, zero-terminated; bulk too
  std::array<char, 16> session_id{};
  std::array<char, 32> resume_token{};
  std::array<char, 32> bulk_token{};
  std::array<char, 32> tls_secret{};  // session, bulk: of a tls connection
  uint32_t from_peer = 0;  // bulk only: another server's, of the copy peer.copy
  wire::PeerTarget peer{};     // peer_wanted
  uint64_t peer_request = 0;   // of peer_wanted and its answer
  uint32_t account_slot = 0;  // account: the session's
  uint32_t oversubscribes = 0;  // session: device memory may go to host memory, and room_wanted is answered
  int32_t gpu = 0;              // room_wanted, move_out, moved_out
  uint64_t memory_bytes = 0;    // likewise; move_out: as much as this, as far as possible
  uint64_t memory_most = 0;     // move_out: and no more than this
  uint64_t memory_keep = 0;     // move_out: as long as so many bytes stay on the GPU
  uint32_t memory_at_once = 0;  // move_out: between two commands; else only when the session has nothing to do
  uint32_t memory_returns = 0;  // room_wanted: for what is in host memory
  uint64_t memory_question = 0;  // of room_wanted and room_patience
  int64_t memory_patience_ms = 0;  // room_patience; 0: there will be no room
  uint32_t gpu_count = 0;     // session: of `gpus`, which the client sees and no others; 0: all
  std::array<uint8_t, 64> gpus{};  // as the device library numbers them
  uint64_t image_bytes = 0;        // session: of the largest image that poold keeps, 0: none; image_...: of this one
  wire::ImageDigest image_name{};  // this and below: image_...
  uint64_t image_request = 0;      // of a question and its answer
  uint64_t server_id = 0;          // session: of this poold
  std::array<uint8_t, 16> share_secret{};  // share_wanted; this and below: share_...
  uint64_t share_session = 0;              // share_wanted: whose it is
  uint64_t share_asker = 0;                // the session that wants it: poold's word
  uint64_t share_request = 0;              // the asker's
  uint32_t share_is_memory = 0;            // share_found
  uint64_t share_types = 0;                // share_found, of memory; `gpu` and `memory_bytes` as well
  uint64_t share_charge = 0;
  std::array<char, 64> share_event{};      // share_found, of an event
  uint64_t state_question = 0;     // this and below: change_state, state_changed, stop_locking; memory_most: bytes that may go to host memory
  wire::CheckpointAction state_action = wire::CheckpointAction::find;
  int32_t state_result = 0;        // CUresult
  uint64_t dump_question = 0;      // dump_wanted, dump
};
static_assert(std::is_trivially_copyable_v<ControlHeader>);

struct ControlMessage {
  ControlHeader header;
  std::string payload;
  int descriptor = -1;  // the receiver's to close
};

// `descriptor` -1: none; it stays the caller's. Never blocks: ErrorCode::limit when the other process does not read.
Result<void> send_control(int socket, ControlHeader header, const std::string& payload, int descriptor);
// Blocks as the socket does. ErrorCode::closed: the other process has ended; malformed: it has sent anything else
// than one message with at most one descriptor. A descriptor is lost where this process may open no more.
Result<ControlMessage> receive_control(int socket);
// The same for poold, which takes no descriptors: a message with some stays where it is, and is ErrorCode::malformed. Never blocks: ErrorCode::limit
// where there is no message.
Result<ControlMessage> receive_worker_control(int socket);

}  // namespace gpupool::server
