// What a worker measures for a client's timeline (docs/timeline.md): the body of MessageKind::timeline, and
// of the command read_clock. Only in sessions whose Hello has wants_timeline, if the HelloReply has
// makes_timeline. All times are nanoseconds of the worker's monotonic clock.
#pragma once
#include "protocol/wire/frame.h"

namespace gpupool::wire {

// read_clock: begins the records, if it is the first. The worker answers with a timeline message that has the
// command's number in `answers`, without waiting for any stream. With kFlushTimeline, all finished records
// are sent before it.
struct ReadClock {
  uint32_t flags = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ReadClock) == 8);
constexpr uint32_t kFlushTimeline = 1;

enum class TimelineKind : uint16_t {
  kernel = 1,            // `subject`: the function's handle
  graph = 2,             // launch of a graph, or of a part of one; `subject`: number of nodes
  copy_to_device = 3,    // `subject`: bytes
  copy_from_device = 4,  // `subject`: bytes
  work_on_device = 5,    // a fill, or a copy within the device; `subject`: bytes
  stream_wait = 6,       // the stream has waited for the client; the text says for what
  worker_wait = 7,       // a thread of the worker has waited; the text says for what; `subject`: the thread
  turn = 8,              // the session had its turn on a GPU; `subject`: the GPU's index on the server
};
// The record's times are the GPU's, converted to the worker's clock; else the worker has read its own clock.
constexpr uint16_t kMeasuredByGpu = 1;

// Followed by `text_bytes` bytes of text.
struct TimelineRecord {
  uint64_t begin = 0;
  uint64_t duration = 0;
  uint64_t context = 0;  // handle; 0: none
  uint64_t stream = 0;   // handle; 0: the legacy stream of `context`
  uint64_t subject = 0;
  uint64_t command = 0;  // sequence number; 0: none
  uint32_t grid[3] = {};
  uint32_t block[3] = {};
  TimelineKind kind = TimelineKind::kernel;
  uint16_t flags = 0;  // kMeasuredByGpu
  uint16_t text_bytes = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(TimelineRecord) == 80);

// Followed by the records.
struct TimelineBatch {
  uint64_t clock = 0;     // random number of the worker process: another one is another clock
  uint64_t dropped = 0;   // records that the session has not kept, since its start
  uint64_t answers = 0;   // number of a read_clock; 0: none
  uint64_t received = 0;  // when read_clock was received
  uint64_t sent = 0;      // when this message was made
  uint32_t records = 0;
  uint32_t gpu_error = 0;  // nanoseconds by which GPU times may be wrong on the worker's clock
};
static_assert(sizeof(TimelineBatch) == 48);
// Longest body of a timeline message: a bandwidth quota delays longer messages.
constexpr size_t kMostTimelineBytes = 4000;
constexpr size_t kLongestTimelineText = 120;

}  // namespace gpupool::wire
