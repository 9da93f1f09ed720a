#include "server/worker/session/replies.h"

#include "server/worker/copies/small_copies.h"
#include "server/worker/memory/device_memory.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/output_capture.h"

namespace gpupool::worker {

void Replies::answer(uint64_t sequence, CUresult result, std::span<const std::byte> body) {
  publish();
  memory_.collect();
  outbox_.send(wire::MessageKind::reply, result, sequence, body);
}

void Replies::publish() {
  if (capture_.expects_output()) capture_.flush();
  small_copies_.flush();
}

}  // namespace gpupool::worker
