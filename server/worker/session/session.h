// One client's session: owns all of its state on the device and its connection, in parts that handlers and
// other parts use. The executor (executor.h) runs it, and teardown.h destroys it.
//
// Executor's thread, except for what the parts' headers name.
#pragma once
#include "server/worker/checkpoint/checkpoint.h"
#include "server/worker/checkpoint/checkpoint_image.h"
#include "server/worker/compute/compute_gate.h"
#include "server/worker/compute/device_partition.h"
#include "server/worker/compute/resources.h"
#include "server/worker/copies/copies.h"
#include "server/worker/device/device_api.h"
#include "server/worker/graphs/graphs.h"
#include "server/worker/handlers/guards.h"
#include "server/worker/images/code.h"
#include "server/worker/memory/arrays.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/memory/memory_charges.h"
#include "server/worker/memory/memory_moves.h"
#include "server/worker/memory/reclaimer.h"
#include "server/worker/memory/shared_host_memory.h"
#include "server/worker/memory/virtual_memory.h"
#include "server/worker/migration/adoption.h"
#include "server/worker/migration/departure.h"
#include "server/worker/migration/history.h"
#include "server/worker/session/back_pressure.h"
#include "server/worker/session/backlog.h"
#include "server/worker/session/command.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/current_command.h"
#include "server/worker/session/event_guard.h"
#include "server/worker/session/executor.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/inbox.h"
#include "server/worker/session/migration_requests.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/output_capture.h"
#include "server/worker/session/replies.h"
#include "server/worker/session/spin_time.h"
#include "server/worker/session/stream_gates.h"
#include "server/worker/session/stream_work.h"
#include "server/worker/session/waits.h"
#include "server/worker/sharing/exported_handles.h"
#include "server/worker/sharing/peers.h"
#include "server/worker/timeline/timeline.h"

namespace gpupool::worker {

class Session {
 public:
  explicit Session(SessionStart& start);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Removes the state of a module or library that is kept until the device has unloaded it.
  void forget_code(uint64_t handle);

  // Start and monitoring.
  CurrentCommand current_command;
  SessionStart& start;
  quota::SessionPage& counters;

  // The device library.
  DeviceApi api;
  DevicePartition partition;
  Resources resources;

  // Quota and connection.
  quota::Ledger ledger;
  Outbox outbox;
  OutputCapture capture;
  Timeline timeline;

  // Contexts, streams and the order of commands.
  Contexts contexts;
  StreamGates gates;
  Backlog backlog;
  BackPressure back_pressure;
  Scrubber scrubber;
  HandleTable table;
  WaitPool waits;
  SpinTime spin_time;
  ComputeGate compute;
  StreamWork stream_work;

  // Data, and other processes.
  Copies copies;
  Replies replies;
  SharedHostMemory shared_memory;
  Peers peers;
  Resumption* resumption = nullptr;  // while the session runs, if its client can resume it
  ExportedHandles exported_handles;
  MigrationRequests migration_requests;

  // Device memory.
  CheckpointImage checkpoint_image;
  Reclaimer reclaimer;
  DeviceMemory memory;
  MemoryMoves moves;
  Checkpoint checkpoint;
  VirtualMemory virtual_memory;
  Arrays arrays;
  MemoryCharges memory_charges;

  // Code and graphs.
  Code code;
  Graphs graphs;
  EventGuard events;
  guards::Calls guarded;

  // Migration.
  History history;
  Departure departure;
  Adoption adoption;

  Inbox inbox;
  Executor executor;
};

// The session of the calling executor thread, for wrappers that rows call in place of driver functions.
extern thread_local Session* t_session;

}  // namespace gpupool::worker
