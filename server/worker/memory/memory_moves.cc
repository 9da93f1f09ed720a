#include "server/worker/memory/memory_moves.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "server/quota/memory_moves.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using namespace std::chrono_literals;
using Clock = MemoryMoves::Clock;

constexpr auto kAskEvery = 100ms;
// Polling interval, because the device does not signal freed memory or finished streams.
constexpr timespec kBusyPollInterval{0, 1'000'000};
constexpr auto kLongestOrder = 5s;     // an order that cannot be executed within this time is declined
constexpr auto kLongestDrain = 500ms;  // how long commands are held back while the device finishes its work
constexpr std::chrono::microseconds kPollWhileBusy{10'000};
constexpr std::chrono::microseconds kPollAnyway{250'000};  // in case a wake-up was lost
constexpr auto kShortestStay = 1s;
constexpr auto kLongestStay = 60s;
constexpr int kStayFactor = 4;  // memory stays for this multiple of the time that bringing it back took

bool touches_memory(uint16_t id) {
  using wire::Command;
  switch (static_cast<Command>(id)) {
    case Command::ping:
    case Command::goodbye:
    case Command::acknowledge:
    case Command::read_clock:
    case Command::end_migration:
    case Command::free_memory: return false;
    default: return true;
  }
}

int64_t nanoseconds_of(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace

bool must_not_wait(uint16_t id) {
  using wire::Command;
  switch (static_cast<Command>(id)) {
    case Command::host_function_done:
    case Command::resume_stream:
    case Command::cancel_bulk: return true;
    default: return !touches_memory(id);
  }
}

void MemoryMoves::begin() {
  on_ = session_.start.oversubscribes && session_.start.control != nullptr;
  if (!on_) return;
  session_.memory.set_full_device_waiter(*this);
  session_.start.control->handle(
      server::ControlKind::move_out, [this](const server::ControlMessage& message) {
        const auto said = message.body<server::packet::MoveOut>();
        {
          const std::lock_guard lock(mutex_);
          order_ = {said.gpu, said.bytes, said.most, said.keep, said.at_once != 0, Clock::now()};
        }
        session_.start.connection->interrupt();
      });
  session_.start.control->handle(server::ControlKind::room_patience,
                                 [this](const server::ControlMessage& message) {
                                   const std::lock_guard lock(mutex_);
                                   patience_ = message.body<server::packet::RoomPatience>();
                                 });
  after_command();
}

void MemoryMoves::end() {
  if (!on_) return;
  session_.start.control->handle(server::ControlKind::move_out, nullptr);
  session_.start.control->handle(server::ControlKind::room_patience, nullptr);
}

std::optional<MemoryMoves::Order> MemoryMoves::order() {
  const std::lock_guard lock(mutex_);
  if (unsent_ && session_.start.control->send<server::ControlKind::moved_out>(*unsent_)) unsent_.reset();
  return order_;
}

// poold gives no other order before it has the answer.
void MemoryMoves::answer(const Order& order, uint64_t moved) {
  const server::packet::MovedOut answer{.bytes = moved, .gpu = order.gpu};
  const std::lock_guard lock(mutex_);
  order_.reset();
  if (!session_.start.control->send<server::ControlKind::moved_out>(answer)) unsent_ = answer;
}

// Includes work of destroyed streams, copies by other threads, and stream captures.
bool MemoryMoves::has_work() {
  const DeviceApi& api = session_.api;
  if (session_.gates.any() || !session_.backlog.empty()) return true;
  session_.memory.collect();
  session_.scrubber.settle();
  if (session_.memory.pending() || session_.scrubber.pending()) return true;
  session_.compute.before_sleep();  // gives up the turn on the GPU
  const CUcontext before = current_context();
  bool work = false;
  const auto is_capturing = [&](const StreamState& stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return api.cuStreamIsCapturing && (api.cuStreamIsCapturing(stream.stream, &status) != CUDA_SUCCESS ||
                                       status != CU_STREAM_CAPTURE_STATUS_NONE);
  };
  for (auto& [handle, context] : session_.contexts.all()) {
    if (work) break;
    work = make_current(api, context->object) != CUDA_SUCCESS ||
           !session_.copies.bulk.drain(context->object, Clock::now());
    context->for_each_stream([&](StreamState& stream) { work = work || is_capturing(stream); });
    for (const CUevent event : context->destroyed_stream_events)
      work = work || api.cuEventQuery(event) == CUDA_ERROR_NOT_READY;
    context->for_each_stream(
        [&](StreamState& stream) { work = work || !session_.stream_work.is_idle(stream); });
  }
  make_current(api, before);
  return work;
}

bool MemoryMoves::follow(const Order& order) {
  if (has_work()) {
    if (order.at_once && Clock::now() - order.came < kLongestOrder) return false;
    answer(order, 0);
    return true;
  }
  answer(order, session_.memory.move_out(order.gpu, order.bytes, order.most, order.keep));
  return true;
}

std::optional<std::chrono::microseconds> MemoryMoves::before_sleep() {
  if (!on_) return std::nullopt;
  const auto wanted = order();
  if (!wanted) return kPollAnyway;
  // The session has become active again.
  if (!wanted->at_once && Clock::now() - idle_since_ < quota::kIdleAfter)
    answer(*wanted, 0);
  else if (!follow(*wanted))
    return kPollWhileBusy;
  return kPollAnyway;
}

// Other sessions need the memory: holds commands back until the device has finished its work.
void MemoryMoves::drain_for_move() {
  const auto stop = Clock::now() + kLongestDrain;
  auto wanted = order();
  if (!wanted) return;
  if (!wanted->at_once) return answer(*wanted, 0);
  while (has_work()) {
    if (Clock::now() >= stop) return answer(*wanted, 0);
    ::nanosleep(&kBusyPollInterval, nullptr);
  }
  follow(*wanted);
}

bool MemoryMoves::before_command(uint16_t id) {
  if (!on_) return true;
  session_.counters.idle_since.store(0, std::memory_order_relaxed);
  if (!must_not_wait(id)) drain_for_move();
  return !touches_memory(id) || !session_.memory.moved_out() || move_back_all();
}

void MemoryMoves::after_command() {
  if (!on_) return;
  idle_since_ = Clock::now();
  session_.counters.idle_since.store(nanoseconds_of(idle_since_), std::memory_order_relaxed);
}

bool MemoryMoves::move_back_all() {
  std::chrono::nanoseconds took{};
  defer_next_move(kLongestStay);  // it is not known yet how long this takes
  const CUresult result = session_.memory.move_back(&took);
  defer_next_move(took);
  if (result == CUDA_SUCCESS) return true;
  session_.outbox.end("cannot move memory back from host memory to the GPU: CUDA error " +
                      std::to_string(result));
  return false;
}

void MemoryMoves::defer_next_move(std::chrono::nanoseconds took) {
  const auto until = Clock::now() + std::max<std::chrono::nanoseconds>(kShortestStay, took * kStayFactor);
  session_.counters.stays_until.store(nanoseconds_of(until), std::memory_order_relaxed);
}

// Makes one attempt. Gives up the session's own memory to sessions that have waited longer: it is useless to
// a session that is still waiting for the rest of its memory.
bool MemoryMoves::await(Wait& wait) {
  const Waiting waiting("free memory on the GPU");
  const auto now = Clock::now();
  if (wait.since == Clock::time_point{}) wait.since = now;
  {
    const std::lock_guard lock(mutex_);
    if (wait.question != 0 && patience_.question == wait.question)
      wait.patience = std::chrono::milliseconds(patience_.patience_ms);
  }
  if (session_.outbox.over() || (!wait.returns && now - wait.since >= wait.patience)) return false;
  if (now - wait.asked >= kAskEvery) {
    wait.question = ++question_;
    (void)session_.start.control->send<server::ControlKind::memory_needed>(
        {.question = wait.question, .bytes = wait.bytes, .gpu = wait.device, .restores = wait.returns});
    wait.asked = now;
  }
  if (const auto wanted = order()) {
    if (wanted->at_once)
      follow(*wanted);
    else
      answer(*wanted, 0);
  }
  session_.compute.end_pieces_if_asked();  // another session may be waiting for the turn
  if (!wait.returns) defer_next_move(0s);
  ::nanosleep(&kBusyPollInterval, nullptr);
  return true;
}

}  // namespace gpupool::worker
