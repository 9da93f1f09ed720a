#include "server/worker/timeline/timeline.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>
#include <system_error>

#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 5ms;  // while work is pending or records are to be sent
constexpr unsigned kMostBatchesAtOnce = 16;
constexpr size_t kMostQueues = 1024;        // of streams without work
constexpr uint64_t kShortestWait = 50'000;  // nanoseconds; shorter waits are not recorded

// The session of this process whose waits are recorded; guarded by g_mutex. Workers have one session.
std::mutex g_mutex;
Timeline* g_timeline = nullptr;

enum class ThreadKind { other, executor, timeline };
thread_local ThreadKind t_kind = ThreadKind::other;
thread_local uint64_t t_number = 0;
std::atomic<uint64_t> g_threads{0};

// The executor waits for commands, and the threads of connections wait for pieces, whenever there is nothing
// to do.
bool is_worth_telling(std::string_view reason) {
  if (t_kind == ThreadKind::timeline || reason == "the client's data") return false;
  return t_kind == ThreadKind::executor || reason == "the tenant's bandwidth" ||
         reason.starts_with("staging memory");
}

uint64_t random_number() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

Timeline::Timeline(const DeviceApi& api, const CurrentCommand& current_command, Outbox& outbox, bool on)
    : api_(api),
      current_command_(current_command),
      outbox_(outbox),
      on_(on),
      clock_(on ? random_number() : 0) {}

void Timeline::start(const SymbolLookup& symbol) {
  if (!on_ || thread_.joinable()) return;
  elapsed_ = reinterpret_cast<GpuClock::ElapsedTime>(symbol("cuEventElapsedTime"));
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // answer_clock() still sends the records
  }
  t_kind = ThreadKind::executor;
  const std::lock_guard lock(g_mutex);
  if (g_timeline) return;
  g_timeline = this;
  wait_listener.store(&Timeline::note_wait, std::memory_order_relaxed);
}

void Timeline::stop() {
  {
    const std::lock_guard lock(g_mutex);
    if (g_timeline == this) {
      wait_listener.store(nullptr, std::memory_order_relaxed);
      g_timeline = nullptr;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Timeline::note_wait(const char* reason, std::chrono::steady_clock::time_point since) {
  if (!is_worth_telling(reason)) return;
  const auto begin = static_cast<uint64_t>(std::chrono::nanoseconds(since.time_since_epoch()).count());
  if (timeline_now() - begin < kShortestWait) return;
  if (t_kind != ThreadKind::executor && t_number == 0) t_number = ++g_threads;
  const std::lock_guard lock(g_mutex);
  if (g_timeline) g_timeline->note(wire::TimelineKind::worker_wait, t_number, begin, reason);
}

wire::TimelineRecord Timeline::record_of(const StreamState& stream, const Work& work) const {
  wire::TimelineRecord record{.context = stream.context->handle,
                              .stream = stream.handle,
                              .subject = work.subject,
                              .command = current_command_.sequence(),
                              .kind = work.kind};
  if (work.grid) std::copy_n(work.grid, 3, record.grid);
  if (work.block) std::copy_n(work.block, 3, record.block);
  return record;
}

bool Timeline::reserve() {
  if (pending_.fetch_add(1, std::memory_order_relaxed) < kMostPending) return true;
  pending_.fetch_sub(1, std::memory_order_relaxed);
  dropped_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void Timeline::add(Entry entry) {
  const std::lock_guard lock(mutex_);
  incoming_.push_back(std::move(entry));
  if (idle_) wake_.notify_all();
}

std::optional<Timeline::Entry> Timeline::begin(StreamState& stream, const Work& work) {
  if (!reserve()) return std::nullopt;
  Entry entry{.record = record_of(stream, work),
              .context = stream.context->object,
              .events = stream.context->timed_events};
  entry.start = entry.events->take();
  if (entry.start && api_.cuEventRecord(entry.start, stream.stream) == CUDA_SUCCESS) return entry;
  give_up(entry);
  return std::nullopt;
}

void Timeline::end(Entry entry, StreamState& stream, bool good) {
  if (good) {
    entry.end = entry.events->take();
    if (entry.end && api_.cuEventRecord(entry.end, stream.stream) == CUDA_SUCCESS)
      return add(std::move(entry));
  }
  give_up(entry);
  if (!good) dropped_.fetch_sub(1, std::memory_order_relaxed);  // there is no work
}

std::shared_ptr<HostSpan> Timeline::begin_span(StreamState& stream, const Work& work, const char* text) {
  if (!recording_.load(std::memory_order_relaxed) || !reserve()) return nullptr;
  auto span = std::make_shared<HostSpan>();
  Entry entry{
      .record = record_of(stream, work), .text = text, .context = stream.context->object, .host = span};
  entry.record.begin = timeline_now();
  add(std::move(entry));
  return span;
}

void Timeline::note(wire::TimelineKind kind, uint64_t subject, uint64_t begin, const char* text) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  publish({.begin = begin,
           .duration = timeline_now() - begin,
           .subject = subject,
           .command = current_command_.sequence(),
           .kind = kind},
          text);
}

void Timeline::publish(const wire::TimelineRecord& record, const char* text) {
  const std::lock_guard lock(mutex_);
  if (ready_.size() >= kMostReady) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ready_.push_back({record, text});
  if (idle_) wake_.notify_all();
}

// Gives the entry's events back and counts it as dropped.
void Timeline::give_up(Entry& entry) {
  if (entry.start) entry.events->give(std::exchange(entry.start, nullptr));
  if (entry.end) entry.events->give(std::exchange(entry.end, nullptr));
  pending_.fetch_sub(1, std::memory_order_relaxed);
  dropped_.fetch_add(1, std::memory_order_relaxed);
}

bool Timeline::is_done(const Entry& entry) const {
  return entry.events ? api_.cuEventQuery(entry.end) != CUDA_ERROR_NOT_READY : entry.host->end() != 0;
}

bool Timeline::measure_gpu(Entry& entry) {
  GpuClock& clock = clocks_.try_emplace(entry.context, api_, elapsed_, entry.events).first->second;
  const auto begin = clock.time_of(entry.start);
  const auto length = clock.between(entry.start, entry.end);
  gpu_error_.store(static_cast<uint32_t>(std::min<uint64_t>(clock.error(), UINT32_MAX)),
                   std::memory_order_relaxed);
  if (!begin || !length) return false;
  entry.record.begin = *begin;
  entry.record.duration = *length;
  entry.record.flags |= wire::kMeasuredByGpu;
  return true;
}

// Publishes the finished records at the front of a queue. Its context must be current.
void Timeline::collect_from(Queue& queue) {
  while (!queue.entries.empty() && is_done(queue.entries.front())) {
    Entry entry = std::move(queue.entries.front());
    queue.entries.pop_front();
    wire::TimelineRecord& record = entry.record;
    if (entry.events) {
      if (!measure_gpu(entry)) {
        give_up(entry);
        continue;
      }
      // Keeps the length, which is exact, and corrects the begin, which is not.
      record.begin = std::max(record.begin, queue.last_end);
      entry.events->give(entry.start);
      entry.events->give(entry.end);
    } else if (entry.host->end() == HostSpan::kDiscarded) {
      pending_.fetch_sub(1, std::memory_order_relaxed);
      continue;
    } else {
      // The stream reaches the work when its earlier work is done.
      const uint64_t end = std::max(entry.host->end(), queue.last_end);
      record.begin = std::max(record.begin, queue.last_end);
      record.duration = end - std::min(record.begin, end);
    }
    queue.last_end = record.begin + record.duration;
    pending_.fetch_sub(1, std::memory_order_relaxed);
    publish(record, entry.text);
  }
}

void Timeline::collect() {
  std::vector<Entry> incoming;
  {
    const std::lock_guard lock(mutex_);
    incoming.swap(incoming_);
  }
  for (Entry& entry : incoming) {
    auto& entries = queues_[{entry.context, entry.record.stream}].entries;
    entries.push_back(std::move(entry));
  }
  for (auto& [key, queue] : queues_) {
    if (queue.entries.empty()) continue;
    const VisitContext visit(api_, key.first);
    collect_from(queue);
  }
  // Streams come and go.
  const uint64_t long_ago = timeline_now() - 10'000'000'000;
  std::erase_if(queues_, [&](const auto& entry) {
    const bool is_old = entry.second.last_end < long_ago || queues_.size() > kMostQueues;
    return is_old && entry.second.entries.empty();
  });
}

void Timeline::drop_queue(Queue& queue) {
  collect_from(queue);
  for (Entry& entry : queue.entries) give_up(entry);
  queue.entries.clear();
}

void Timeline::drop(const ContextState& context) {
  if (!on_) return;
  const std::lock_guard lock(collecting_);
  collect();
  for (auto& [key, queue] : queues_) {
    if (key.first == context.object) drop_queue(queue);
  }
  std::erase_if(queues_, [&](const auto& entry) { return entry.first.first == context.object; });
  if (const auto clock = clocks_.find(context.object); clock != clocks_.end()) {
    clock->second.close();
    clocks_.erase(clock);
  }
}

// Returns whether more records are left.
bool Timeline::send_batch(uint64_t answers, uint64_t received) {
  std::vector<std::byte> body(sizeof(wire::TimelineBatch));
  body.reserve(wire::kMostTimelineBytes);
  wire::TimelineBatch batch{.clock = clock_, .answers = answers, .received = received};
  bool more = false;
  const auto append = [&](const void* bytes, size_t size) {
    const auto* const first = static_cast<const std::byte*>(bytes);
    body.insert(body.end(), first, first + size);
  };
  {
    const std::lock_guard lock(mutex_);
    for (; !ready_.empty(); ready_.pop_front(), ++batch.records) {
      Ready& ready = ready_.front();
      const size_t length = ready.text ? ::strnlen(ready.text, wire::kLongestTimelineText) : 0;
      if (body.size() + sizeof ready.record + length > wire::kMostTimelineBytes) break;
      ready.record.text_bytes = static_cast<uint16_t>(length);
      append(&ready.record, sizeof ready.record);
      append(ready.text, length);
    }
    more = !ready_.empty();
  }
  if (batch.records == 0 && answers == 0) return false;
  batch.dropped = dropped_.load(std::memory_order_relaxed);
  batch.gpu_error = gpu_error_.load(std::memory_order_relaxed);
  batch.sent = timeline_now();
  std::memcpy(body.data(), &batch, sizeof batch);
  return outbox_.send(wire::MessageKind::timeline, CUDA_SUCCESS, 0, body) && more;
}

void Timeline::answer_clock(uint64_t command, uint32_t flags) {
  const uint64_t received = timeline_now();
  recording_.store(true, std::memory_order_relaxed);
  if ((flags & wire::kFlushTimeline) != 0) {
    {
      const std::lock_guard lock(collecting_);
      collect();
    }
    while (send_batch(0, 0)) {
    }
  }
  send_batch(command, received);
}

void Timeline::run() {
  t_kind = ThreadKind::timeline;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    idle_ = ready_.empty() && incoming_.empty() && pending_.load(std::memory_order_relaxed) == 0;
    if (idle_) wake_.wait(lock, [this] { return stopping_ || !ready_.empty() || !incoming_.empty(); });
    idle_ = false;
    // Records that come meanwhile travel in the same messages.
    wake_.wait_for(lock, kLookEvery, [this] { return stopping_; });
    if (stopping_) return;
    lock.unlock();
    {
      const std::lock_guard collecting(collecting_);
      collect();
      make_current(api_, nullptr);
    }
    for (unsigned sent = 0; sent < kMostBatchesAtOnce && send_batch(0, 0); ++sent) {
    }
    lock.lock();
  }
}

}  // namespace gpupool::worker
