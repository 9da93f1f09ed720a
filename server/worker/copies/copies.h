// Everything that moves data between the client and the device: staging memory, the connections, and the
// copies in progress, with the parts of the session that they use. Each header says which thread may call
// what.
#pragma once
#include "server/worker/copies/bulk_connections.h"
#include "server/worker/copies/bulk_copy.h"
#include "server/worker/copies/remote_memory.h"
#include "server/worker/copies/small_copies.h"
#include "server/worker/copies/staging.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/replies.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/stream_gates.h"
#include "server/worker/session/stream_work.h"
#include "server/worker/timeline/timeline.h"

namespace gpupool::worker {

class Copies {
 public:
  // `memory` and `replies` are used by copies only, so they may be constructed later.
  Copies(const DeviceApi& api, Contexts& contexts, StreamGates& gates, StreamWork& stream_work,
         WaitPool& waits, DeviceMemory& memory, Replies& replies, Outbox& outbox, OutputCapture& capture,
         Timeline& timeline, const SessionStart& start)
      : api(api),
        contexts(contexts),
        gates(gates),
        stream_work(stream_work),
        waits(waits),
        memory(memory),
        replies(replies),
        timeline(timeline),
        usage(start.usage),
        remote(start.connection->direct_memory(), outbox, start.bandwidth),
        staging(api, remote.memory(), start.usage),
        small(api, outbox, staging, waits, capture),
        connections(bulk, outbox, start.compression, start.welcome_bulk, start.bulk_token) {}
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Begins the timeline's record of a copy whose data threads move.
  std::shared_ptr<HostSpan> begin_span(StreamState& stream, bool to_device, uint64_t bytes) {
    return timeline.begin_span(
        stream,
        {to_device ? wire::TimelineKind::copy_to_device : wire::TimelineKind::copy_from_device, bytes});
  }

  // Parts of the session.
  const DeviceApi& api;
  Contexts& contexts;
  StreamGates& gates;
  StreamWork& stream_work;
  WaitPool& waits;
  DeviceMemory& memory;
  Replies& replies;
  Timeline& timeline;
  const Usage& usage;

  RemoteMemory remote;
  Staging staging;
  SmallCopies small;
  BulkCopies bulk;
  BulkConnections connections;
};

}  // namespace gpupool::worker
