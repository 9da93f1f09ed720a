#include "server/worker/session/back_pressure.h"

#include <algorithm>

#include "server/worker/session/backlog.h"
#include "server/worker/session/handle_table.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {
namespace {

constexpr uint64_t kMostKept = uint64_t{1} << 30;  // bytes; used where the tenant's limit is higher or absent
// Bytes, as Backlog::bytes() counts them, that can still arrive after the client was told: a batch and a
// piece of a copy from each of the program's threads, and the contents of the socket buffers.
constexpr uint64_t kOnTheWay = 128u << 20;
// Pending await_room commands, one per client thread; further ones are answered at once.
constexpr size_t kMostAsked = 4096;

}  // namespace

uint64_t BackPressure::high_mark() const {
  return usage_.most_queued(kMostKept) / 2;
}

uint64_t BackPressure::limit() const {
  return std::max(usage_.most_queued(kMostKept), high_mark() + kOnTheWay);
}

bool BackPressure::has_room(const Asked& asked) const {
  if (!long_) return true;
  contexts_.enter_named(asked.command.context);
  CommandOrder order;
  order.rule = CommandOrder::Rule::in_order;
  order.sequence = asked.command.sequence;
  order.stream = table_.find_stream(asked.stream);
  order.gives_work = order.stream != nullptr;
  return backlog_.must_wait(order) == nullptr;
}

void BackPressure::await_room(const wire::CommandHeader& command, uint64_t stream) {
  if (asked_.size() == kMostAsked) {
    outbox_.send(wire::MessageKind::reply, CUDA_SUCCESS, command.sequence);
    return;
  }
  asked_.push_back({command, stream});
  update();
}

void BackPressure::update() {
  const uint64_t bytes = backlog_.bytes();
  if (bytes == 0 && !long_ && asked_.empty()) return;
  const bool is_long = bytes > (long_ ? high_mark() / 2 : high_mark());
  if (is_long != long_) {
    long_ = is_long;
    outbox_.set_backlog_long(is_long);
    outbox_.send(wire::MessageKind::pong, 0, 0);
  }
  if (asked_.empty()) return;
  ContextState* const before = contexts_.current();
  std::erase_if(asked_, [&](const Asked& asked) {
    if (!has_room(asked)) return false;
    // Does not report a deferred error here: the client would attribute it to this stream. The next executed
    // command does.
    outbox_.send(wire::MessageKind::reply, CUDA_SUCCESS, asked.command.sequence);
    return true;
  });
  contexts_.enter(before);
}

}  // namespace gpupool::worker
