// Executes one client's commands, in their order, on the device. One thread, which is also the one that receives: what a
// command needs to wait for is parked with a wait thread and answered from there, while later commands go on. Commands for a stream that
// waits for the client are kept (backlog.h) until it goes on.
//
// Owns everything that the session holds on the device. The handlers of single commands are in calls/.
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
#include "server/worker/arrays.h"
#include "server/worker/at_work.h"
#include "server/worker/back_pressure.h"
#include "server/worker/backlog.h"
#include "server/worker/bulk.h"
#include "server/worker/bulk_copy.h"
#include "server/worker/bulk_links.h"
#include "server/worker/cached_images.h"
#include "server/worker/calls/guards.h"
#include "server/worker/checkpoint.h"
#include "server/worker/checkpoint_image.h"
#include "server/worker/compute_gate.h"
#include "server/worker/contexts.h"
#include "server/worker/device_api.h"
#include "server/worker/device_memory.h"
#include "server/worker/device_partition.h"
#include "server/worker/event_guard.h"
#include "server/worker/footprints.h"
#include "server/worker/postponed_unloads.h"
#include "server/worker/graphs.h"
#include "server/worker/handle_table.h"
#include "server/worker/images.h"
#include "server/worker/inbox.h"
#include "server/worker/linkers.h"
#include "server/worker/memory_moves.h"
#include "server/worker/offers.h"
#include "server/worker/outbox.h"
#include "server/worker/peer.h"
#include "server/worker/peer_requests.h"
#include "server/worker/output_capture.h"
#include "server/worker/remote_memory.h"
#include "server/worker/resources.h"
#include "server/worker/shared_host_memory.h"
#include "server/worker/spin_time.h"
#include "server/worker/staging.h"
#include "server/worker/stream_gates.h"
#include "server/worker/uploads.h"
#include "server/worker/virtual_memory.h"
#include "server/worker/waits.h"

namespace gpupool::worker {

struct Command {
  wire::CommandHeader header;
  wire::Reader body{{}};  // empty in commands that take their body from the inbox
  bool wants_reply() const { return (header.flags & wire::kWantsReply) != 0; }
};

// What became of a command.
struct Outcome {
  enum class Next { reply, parked, malformed, lost };
  Next next = Next::reply;
  CUresult result = CUDA_SUCCESS;
  const char* why = "";  // malformed: for the client's message

  Outcome(CUresult result) : result(result) {}
  static Outcome parked() { return Outcome(Next::parked, ""); }  // answered already, or by a wait thread later
  static Outcome malformed(const char* why) { return Outcome(Next::malformed, why); }
  static Outcome lost() { return Outcome(Next::lost, ""); }       // the connection broke within the command

 private:
  Outcome(Next next, const char* why) : next(next), why(why) {}
};

class Executor {
 public:
  explicit Executor(SessionStart& start);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Until the client leaves or must be made to. True after an orderly end.
  bool run();
  // Frees everything; blocks while the device is at work on it.
  void tear_down();
  AtWork at_work;

  // --- for the handlers in calls/ ---
  SessionStart& start;
  quota::SessionPage& counters;
  DeviceApi api;
  DevicePartition partition;
  Resources resources;
  quota::Ledger ledger;
  Outbox outbox;
  OutputCapture capture;
  std::atomic<bool> output_possible{false};  // there is device code, which may print
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
  Bulk bulk;
  BulkCopies copies;
  BulkLinks links;
  PeerRequests peer_requests;
  Offers offers;
  CheckpointImage checkpoint_image;
  DeviceMemory memory;
  MemoryMoves moves;
  Checkpoint checkpoint;
  VirtualMemory virtual_memory;
  Arrays arrays;
  Footprints footprints;
  PostponedUnloads postponed_unloads;
  Graphs graphs;
  Uploads uploads;
  CachedImages cached_images;
  Images images;
  Linkers linkers;
  EventGuard events;
  guards::Calls guarded;
  Inbox inbox;
  wire::Buffer reply_body;  // of the command at work

  // Answers later, from any thread that has a context current: sends what must come before, then the reply.
  void answer(uint64_t sequence, CUresult result, std::span<const std::byte> body = {});
  // The error of an earlier command that nobody waited for; it is reported once.
  CUresult take_deferred() {
    const CUresult result = deferred();
    if (result != CUDA_SUCCESS) deferred_.store(CUDA_SUCCESS, std::memory_order_relaxed);
    return result;
  }
  CUresult deferred() const { return deferred_.load(std::memory_order_relaxed); }
  // Only the first is ever reported.
  void defer(CUresult result) {
    if (deferred() == CUDA_SUCCESS) deferred_.store(result, std::memory_order_relaxed);
    else if (result != CUDA_SUCCESS) counters.errors.fetch_add(1, std::memory_order_relaxed);
  }
  // Sends what the client must see before it is told that device work has completed. Any thread.
  void publish();
  // True: everything that the stream got so far, and what it has to wait for, is done.
  bool is_idle(StreamState& stream);
  // Completed work of a stream: its kernels' output is fetched from the device.
  void fetch_output(StreamState& stream);
  // Answers commands whose memory has been zeroed, and executes kept commands whose gates have opened. False: the session is over. Between two
  // commands.
  bool settle() {
    scrubber.settle();
    return !gates.has_opened() || run_backlog();
  }
  // Calls `then` on a wait thread, with the stream's context current, when the device has done what the stream got so far, with the error that it
  // ended with. `purpose`: a string literal, for monitoring. False: there is no event or thread to be had.
  bool when_done(StreamState& stream, const char* purpose, std::function<void(CUresult)> then);
  // The stream is about to be destroyed: its unfinished copies and uses are kept apart from it.
  void departing(StreamState& stream);
  // Null: there are too many. Does not connect yet.
  std::shared_ptr<Peer> peer(const wire::PeerTarget& target);
  // The context that the command names, made current; null: it names none, or one that does not exist.
  ContextState* enter(const Command& command);
  // The context is about to be destroyed: what the session has in it is given up. False: a wait in it did not end.
  bool leave(ContextState& context);
  // The session's multiprocessors of a device; 0: all.
  quota::Groups groups_of(int device) const {
    return static_cast<size_t>(device) < start.groups.size() ? start.groups[static_cast<size_t>(device)] : 0;
  }
  // Ends a context on the device that the session has left; what retains the primary context stays the caller's.
  CUresult destroy(CUcontext object, bool primary, GreenContext green);

 private:
  bool receive(const wire::CommandHeader& header);
  // Whether the command was kept, or answered as one that would have been. *alive: the session goes on.
  bool keep(Command& command, bool* alive);
  bool run_backlog();
  bool execute_kept(Backlog::Kept& kept);
  bool replay(Command& command);
  // Waits while too many commands are kept. False: the session is over.
  bool make_room();
  // What is kept of a context that is about to be destroyed is executed as far as it can be, and given up. False: the session is over.
  bool empty_backlog(ContextState& context, std::chrono::steady_clock::time_point deadline);
  struct Postponed;
  // The command at work is answered by what this returns, on the executor's thread.
  std::function<void(CUresult)> answer_later();
  Outcome execute(Command& command);
  Outcome execute_now(Command& command);
  Outcome execute_row(Command& command);
  void unload_postponed();
  // What is kept of a module or library until the device has unloaded it.
  void forget_code(uint64_t handle);
  bool finish(const Command& command, const Outcome& outcome);
  std::optional<std::chrono::microseconds> before_sleep();

  struct RowFunction {
    void* address;
    const char* driver_name;  // null: a wrapper, which names the driver functions that it calls
  };
  std::vector<RowFunction> functions_;  // of the rows, by their place in the table
  struct PeerName {
    std::array<uint8_t, 16> address, session_id;
    uint16_t port, rdma;
    auto operator<=>(const PeerName&) const = default;
  };
  std::map<PeerName, std::shared_ptr<Peer>> peers_;  // executor's thread
  std::shared_ptr<Postponed> postponed_;  // by the command at work
  uint64_t last_sequence_ = 0;
  std::atomic<CUresult> deferred_{CUDA_SUCCESS};  // the executor's thread writes
  std::chrono::microseconds next_sleep_{500};
};

// Returns the name of a row or command, such as "cuMemsetD8Async" or "launch"; "none" for an unknown id.
const char* command_name(uint16_t id);

// Wrappers that a row calls in place of the driver's function find the session here.
extern thread_local Executor* t_executor;

}  // namespace gpupool::worker
