// Control messages between poold and a worker, over a socket pair (AF_UNIX, SOCK_SEQPACKET), one packet per
// message. WorkerPool uses them on poold's thread, worker::Control in the worker.
//
// Start: the worker sends `ready` with its control::Devices, or `failed` with a reason. When a client
// arrives, poold sends `account` (the tenant's quota::Account as a descriptor, and the session's
// multiprocessor groups of each GPU as quota::Groups of 8 bytes each; none: whole GPUs), `code` and
// `cache_folder` if there are any, and `session` (the client's socket and Hello).
// While the session runs: `bulk` brings a further socket of the session, `end_session` ends it, `turn`
// reports a change of the session page's turn words, `dump_wanted` asks what the session is doing.
// `migrate` asks the client to migrate the session, or to suspend it, and `migration_ended` has its answer.
// Module images are sealed memory files (sealed_file.h). The worker asks for one by name (`image_wanted`), or
// offers one (`image_offered`), fills and seals the file that poold sends, and deposits it (`image_deposit`).
// `image_damaged` reports that an image does not match its name.
// Memory shared by sessions of one tenant: poold passes the question from one worker to the other and gives
// each an end of a socket pair, which carries the memory's descriptor.
//
// When either process ends, the other sees the end of its socket. A packet is a header, the plain struct of
// its kind (control.def, control_messages.h) and a payload; poold validates it, because a worker runs a
// client's code paths. Descriptors go only from poold to a worker: closing a received one could block poold.
//
// A worker stays with its version when poold is upgraded, so kControlVersion counts the versions of these
// messages and of the memory that both map (quota::SessionPage, quota::Account); poold does not send a worker
// what its version does not know. scripts/checks/versions.py (test lint.versions) fails if a change needs a
// new one.
#pragma once
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/result.h"
#include "server/handover/control_messages.h"

namespace gpupool::server {

// A new kind of message needs a new version. Any other change of messages or shared memory, but a name for a
// reserved field, also needs a new kOldestControlVersion: poold cannot take over older workers' sessions.
constexpr uint32_t kControlVersion = 1;
constexpr uint32_t kOldestControlVersion = 1;  // of workers that poold can take over

// Descriptor numbers in the worker.
constexpr int kControlDescriptor = 3;
constexpr int kLogDescriptor = 4;          // socket to poold; also stdout and stderr (worker_log.h)
constexpr int kSessionPageDescriptor = 5;  // quota::SessionPage
constexpr int kCodeDescriptor = 6;         // once it has a client: the tenant's compiled code (tenant_code.h)
// Once it has a client: the tenant's folder for the NVIDIA driver's cache (cache_folders.h).
constexpr int kCacheDescriptor = 7;
// poold gives a worker no descriptor whose number in poold is lower: it could be one of the above.
constexpr int kFirstFreeDescriptor = 10;

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

// A packet: this, the struct of its kind (control.def), and the payload.
struct ControlHeader {
  ControlKind kind = ControlKind::ready;
  uint32_t payload_bytes = 0;
};

struct ControlMessage {
  ControlKind kind = ControlKind::ready;
  std::array<std::byte, kMaxControlBody> body_bytes{};
  std::string payload;
  int descriptor = -1;  // owned by the receiver

  // The struct of the message. Aborts if it is not that of its kind, which is a mistake of the caller:
  // compare `kind` first.
  template <class Body>
  Body body() const {
    if (!is_control_body<Body>(kind)) std::abort();
    Body body{};
    if constexpr (!std::is_empty_v<Body>) std::memcpy(&body, body_bytes.data(), sizeof body);
    return body;
  }
};

// Sends a message of this kind. `descriptor` stays the caller's; -1: none. Never blocks. ErrorCode::limit:
// the other process does not read its socket.
Result<void> send_packet(int socket, ControlKind kind, std::span<const std::byte> body,
                         std::string_view payload, int descriptor);
template <ControlKind kind>
Result<void> send_control(int socket, const ControlBody<kind>& body = {}, std::string_view payload = {},
                          int descriptor = -1) {
  const auto bytes = std::as_bytes(std::span(&body, 1));
  return send_packet(socket, kind, bytes.first(kControlBodyBytes<ControlBody<kind>>), payload, descriptor);
}
// Blocks as the socket does. ErrorCode::closed: the other process has ended; malformed: the packet is not one
// message of a known kind, or has more than one descriptor. A descriptor is lost if this process has too many
// open.
Result<ControlMessage> receive_control(int socket);
// Receives in poold, which accepts no descriptors: a message with descriptors stays in the socket and is
// ErrorCode::malformed. Never blocks; ErrorCode::limit: there is no message.
Result<ControlMessage> receive_worker_control(int socket);

}  // namespace gpupool::server
