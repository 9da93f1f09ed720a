#include "server/worker/session/session.h"

#include <cstdlib>
#include <cstring>

#include "server/worker/session/teardown.h"

namespace gpupool::worker {

thread_local Session* t_session = nullptr;

namespace {

// GPU time is neither measured nor limited without poold, or with GPUPOOL_ACCOUNTING=off (to measure the cost
// of accounting).
Usage measured(const SessionStart& start) {
  const char* const accounting = std::getenv("GPUPOOL_ACCOUNTING");
  const bool off = start.control == nullptr || (accounting != nullptr && std::strcmp(accounting, "off") == 0);
  return off ? Usage{} : start.usage;
}

}  // namespace

Session::Session(SessionStart& start)
    : start(start),
      counters(start.usage.counters()),
      ledger(start.usage.account, start.usage.page, start.usage.slot),
      outbox(*start.connection, counters, ledger, start.resumable),
      capture(outbox),
      timeline(api, current_command, outbox, start.wants_timeline),
      contexts(api, current_command),
      gates(
          contexts, [this] { this->start.connection->interrupt(); },
          [this](StreamState& stream) { compute.pause(stream); }),
      backlog(contexts, gates),
      back_pressure(start.usage, contexts, table, backlog, outbox),
      scrubber(
          api, contexts, waits, [this] { return executor.answer_later(); },
          [this] { this->start.connection->interrupt(); }),
      table(api, contexts, counters, start.visible),
      compute(
          api, measured(start), waits,
          [this] { (void)this->start.control->send<server::ControlKind::turn>(); },
          [this] { this->start.connection->interrupt(); }),
      stream_work(api, waits, capture),
      copies(api, contexts, gates, stream_work, waits, memory, replies, outbox, capture, timeline, start),
      replies(outbox, capture, copies.small, memory, counters),
      shared_memory(api, waits),
      peers(start),
      exported_handles(api, start.control, start.server_id, start.session_number),
      migration_requests(start, outbox),
      checkpoint_image(ledger, exported_handles, outbox),
      reclaimer(start.control, outbox),
      memory(api, contexts, outbox, ledger, scrubber, copies.remote.memory()),
      moves(*this),
      checkpoint(*this),
      virtual_memory(api, memory, scrubber),
      arrays(api, contexts, memory, scrubber, waits),
      memory_charges(api, contexts, table, memory, ledger, start),
      code(api, start),
      graphs(*this),
      events(api),
      departure(*this),
      adoption(*this),
      inbox(*start.connection, counters.bytes_from_client, [this] { return executor.before_sleep(); }),
      executor(*this) {
  table.on_stream_destroy([this](StreamState& stream) { before_stream_destroyed(*this, stream); });
  table.on_code_unloaded([this](uint64_t handle) {
    memory.forget_variables(handle);
    if (!code.postponed_unloads.keep_charge_of(handle)) forget_code(handle);
  });
  table.keep_if([this](uint64_t handle) { return backlog.destroys(handle); });
  table.release_memory_by([this](CUmemGenericAllocationHandle handle) { virtual_memory.release(handle); });
  table.hide_arrays_if([this](const void* array) { return arrays.is_dirty(array); });
  table.destroy_array_by([this](void* array) { arrays.drop(array); });
  memory.on_release(
      [this](CUmemGenericAllocationHandle handle) { return exported_handles.withdraw(handle); });
  memory.set_reader(
      {.is_being_read = [this](uint64_t address,
                               uint64_t size) { return departure.is_reading(address, size); },
       .leave = [this](uint64_t address, uint64_t size) { departure.before_unmap(address, size); }});
  if (timeline.on()) {
    gates.on_wait([this](StreamState& stream, const char* reason) {
      return timeline.begin_span(stream, {wire::TimelineKind::stream_wait, 0}, reason);
    });
    compute.on_turn_end([this](uint32_t gpu, ComputeGate::Clock::time_point since) {
      const auto begin = std::chrono::nanoseconds(since.time_since_epoch()).count();
      timeline.note(wire::TimelineKind::turn, gpu, static_cast<uint64_t>(begin));
    });
  }
  if (start.can_migrate) history.turn_on(start.most_history_bytes);
  memory.set_reclaimer(reclaimer);
  memory.take_range(start.range_base, start.range_size);
  if (!start.direct_memory) memory.disable_direct_access();
}

Session::~Session() {
  if (t_session == this) t_session = nullptr;
}

void Session::forget_code(uint64_t handle) {
  code.images.forget(handle);
  memory_charges.forget_image(handle);
}

}  // namespace gpupool::worker
