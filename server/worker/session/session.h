// Executes one client's commands in order on the device. A single thread both receives and executes; a
// command that must wait is parked with a wait thread, which sends the reply while later commands continue.
// Commands for a stream that waits for the client are kept in the backlog (backlog.h).
//
// Owns all of the session's state on the device. The handlers of single commands are in handlers/.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/wire/frame.h"
#include "protocol/wire/reader.h"
#include "protocol/wire/writer.h"
#include "server/worker/checkpoint/checkpoint.h"
#include "server/worker/checkpoint/checkpoint_image.h"
#include "server/worker/compute/compute_gate.h"
#include "server/worker/compute/device_partition.h"
#include "server/worker/compute/resources.h"
#include "server/worker/copies/bulk_connections.h"
#include "server/worker/copies/bulk_copy.h"
#include "server/worker/copies/remote_memory.h"
#include "server/worker/copies/small_copies.h"
#include "server/worker/copies/staging.h"
#include "server/worker/device/device_api.h"
#include "server/worker/graphs/graphs.h"
#include "server/worker/handlers/guards.h"
#include "server/worker/images/cached_images.h"
#include "server/worker/images/images.h"
#include "server/worker/images/linkers.h"
#include "server/worker/images/postponed_unloads.h"
#include "server/worker/images/uploads.h"
#include "server/worker/memory/arrays.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/memory/memory_charges.h"
#include "server/worker/memory/memory_moves.h"
#include "server/worker/memory/shared_host_memory.h"
#include "server/worker/memory/virtual_memory.h"
#include "server/worker/session/back_pressure.h"
#include "server/worker/session/backlog.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/current_command.h"
#include "server/worker/session/event_guard.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/inbox.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/output_capture.h"
#include "server/worker/session/spin_time.h"
#include "server/worker/session/stream_gates.h"
#include "server/worker/session/waits.h"
#include "server/worker/sharing/exported_handles.h"
#include "server/worker/sharing/peer.h"
#include "server/worker/sharing/peer_requests.h"

namespace gpupool::worker {

struct Command {
  wire::CommandHeader header;
  wire::Reader body{{}};  // empty for commands that read their body from the inbox
  bool wants_reply() const { return (header.flags & wire::kWantsReply) != 0; }
};

// Result of executing a command.
struct Outcome {
  enum class Next { reply, parked, malformed, lost };
  Next next = Next::reply;
  CUresult result = CUDA_SUCCESS;
  const char* why = "";  // malformed: the reason, for the message to the client

  Outcome(CUresult result) : result(result) {}
  // The reply was sent already, or a wait thread will send it.
  static Outcome parked() { return Outcome(Next::parked, ""); }
  static Outcome malformed(const char* why) { return Outcome(Next::malformed, why); }
  static Outcome lost() { return Outcome(Next::lost, ""); }  // the connection broke within the command

 private:
  Outcome(Next next, const char* why) : next(next), why(why) {}
};

class Session {
 public:
  explicit Session(SessionStart& start);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Runs until the client leaves or the session has to end. Returns true after an orderly end.
  bool run();
  // Frees everything; blocks while the device is using it.
  void tear_down();
  CurrentCommand current_command;

  // --- For the handlers in handlers/ ---
  SessionStart& start;
  quota::SessionPage& counters;
  DeviceApi api;
  DevicePartition partition;
  Resources resources;
  quota::Ledger ledger;
  Outbox outbox;
  OutputCapture capture;
  std::atomic<bool> output_possible{false};  // device code has been loaded, and may print
  Contexts contexts;
  StreamGates gates;
  Backlog backlog;
  BackPressure back_pressure;
  Scrubber scrubber;
  HandleTable table;
  WaitPool waits;
  SpinTime spin_time;
  ComputeGate compute;
  RemoteMemory remote;
  Staging staging;
  SharedHostMemory shared_memory;
  SmallCopies small_copies;
  BulkCopies copies;
  BulkConnections links;
  PeerRequests peer_requests;
  ExportedHandles exported_handles;
  CheckpointImage checkpoint_image;
  DeviceMemory memory;
  MemoryMoves moves;
  Checkpoint checkpoint;
  VirtualMemory virtual_memory;
  Arrays arrays;
  MemoryCharges memory_charges;
  PostponedUnloads postponed_unloads;
  Graphs graphs;
  Uploads uploads;
  CachedImages cached_images;
  Images images;
  Linkers linkers;
  EventGuard events;
  guards::Calls guarded;
  Inbox inbox;
  wire::Buffer reply_body;  // body of the reply to the current command

  // Sends a delayed reply, after everything that must precede it (publish()). Any thread that has a context
  // current.
  void answer(uint64_t sequence, CUresult result, std::span<const std::byte> body = {});
  // Returns the error of an earlier command without a reply, and clears it.
  CUresult take_deferred() {
    const CUresult result = deferred();
    if (result != CUDA_SUCCESS) deferred_.store(CUDA_SUCCESS, std::memory_order_relaxed);
    return result;
  }
  CUresult deferred() const { return deferred_.load(std::memory_order_relaxed); }
  // Records an error of a command without a reply. Only the first is reported to the client; later ones are
  // counted.
  void defer(CUresult result) {
    if (deferred() == CUDA_SUCCESS)
      deferred_.store(result, std::memory_order_relaxed);
    else if (result != CUDA_SUCCESS)
      counters.errors.fetch_add(1, std::memory_order_relaxed);
  }
  // Sends output of device code and finished copies, which must reach the client before it is told that
  // device work has completed. Any thread.
  void publish();
  // True if all work that the stream has got so far, and all work that it waits for, is done.
  bool is_idle(StreamState& stream);
  // Call for an idle stream: makes the driver print the output of its kernels.
  void fetch_output(StreamState& stream);
  // Call between two commands. Answers commands whose memory has been zeroed, and executes kept commands
  // whose gates have opened. Returns false if the session is over.
  bool settle() {
    scrubber.settle();
    return !gates.has_opened() || run_backlog();
  }
  // Calls `then` on a wait thread when the device has finished the stream's present work, with the stream's
  // context current and the error of that work. `purpose`: a string literal, for monitoring. Returns false if
  // no event or thread is available.
  bool when_done(StreamState& stream, const char* purpose, std::function<void(CUresult)> then);
  // Call before the stream is destroyed. Its unfinished copies and uses are tracked without it from then on.
  void before_stream_destroyed(StreamState& stream);
  // Returns the connection to another server, which may not be open yet, or null if there are too many.
  std::shared_ptr<Peer> peer(const wire::PeerTarget& target);
  // Makes the command's context current. Returns null if the command names none or one that does not exist.
  ContextState* enter(const Command& command);
  // Call before the context is destroyed: frees everything that the session has in it. Returns false if a
  // wait in it does not end within 10 s.
  bool leave(ContextState& context);
  // Returns the session's groups of multiprocessors on a device; 0: all.
  quota::Groups groups_of(int device) const {
    return static_cast<size_t>(device) < start.groups.size() ? start.groups[static_cast<size_t>(device)] : 0;
  }
  // Destroys a context after leave(). Does not release a primary context, which the caller must do.
  CUresult destroy(CUcontext object, bool primary, GreenContext green);

 private:
  bool receive(const wire::CommandHeader& header);
  // Keeps the command in the backlog if it has to wait, or answers it if it may not be kept. Returns whether
  // it did either. *alive: false if the session is over.
  bool keep(Command& command, bool* alive);
  bool run_backlog();
  bool execute_kept(Backlog::KeptCommand& kept);
  bool replay(Command& command);
  // Waits while the backlog is too large. Returns false if the session is over.
  bool make_room();
  // Executes the kept commands of a context that is about to be destroyed as far as possible, and drops the
  // rest. Returns false if the session is over.
  bool empty_backlog(ContextState& context, std::chrono::steady_clock::time_point deadline);
  struct Postponed;
  // Postpones the reply to the current command: calling the returned function on the executor's thread sends
  // it.
  std::function<void(CUresult)> answer_later();
  Outcome execute(Command& command);
  Outcome execute_now(Command& command);
  Outcome execute_row(Command& command);
  void unload_postponed();
  // Removes the state of a module or library that is kept until the device has unloaded it.
  void forget_code(uint64_t handle);
  bool finish(const Command& command, const Outcome& outcome);
  std::optional<std::chrono::microseconds> before_sleep();

  struct RowFunction {
    void* address;
    const char* driver_name;  // null: the address is a wrapper, which reports driver functions itself
  };
  std::vector<RowFunction> functions_;  // by the row's position in the call table
  struct PeerName {
    std::array<uint8_t, 16> address, session_id;
    uint16_t port, rdma;
    auto operator<=>(const PeerName&) const = default;
  };
  std::map<PeerName, std::shared_ptr<Peer>> peers_;  // executor's thread
  std::shared_ptr<Postponed> postponed_;             // set by answer_later() for the current command
  uint64_t last_sequence_ = 0;
  std::atomic<CUresult> deferred_{CUDA_SUCCESS};  // written by the executor's thread only
  std::chrono::microseconds next_sleep_{500};
};

// Returns the name of a row or command, such as "cuMemsetD8Async" or "launch"; "none" or "?" for an unknown
// id.
const char* command_name(uint16_t id);

// The session of the calling executor thread, for wrappers that rows call in place of driver functions.
extern thread_local Session* t_session;

}  // namespace gpupool::worker
