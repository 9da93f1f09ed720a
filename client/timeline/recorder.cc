#include "client/timeline/recorder.h"

#include <pthread.h>

#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace gpupool::client::timeline {

void Recorder::push(const TraceEvent& event) {
  const std::lock_guard lock(mutex_);
  if (finished_ || events_.size() >= kMostEvents) return count_dropped(1);
  try {
    events_.push_back(event);
  } catch (const std::bad_alloc&) {
    return count_dropped(1);
  }
  if (!started_) {
    started_ = true;
    try {
      std::thread([this] { run(); }).detach();
    } catch (const std::system_error&) {  // finish() writes what is kept
    }
  }
  if (events_.size() == kMostEvents / 2) wake_.notify_one();
}

const char* Recorder::intern(std::string_view text) try {
  const std::lock_guard lock(mutex_);
  const char* const name = names_.find_or_add(text);
  return name ? name : "(too many names)";
} catch (const std::bad_alloc&) {
  return "(out of memory)";
}

void Recorder::name_kernel(uint64_t handle, const char* name) try {
  const std::lock_guard lock(mutex_);
  if (kernels_.size() < kMostNames) kernels_[handle] = name;
} catch (const std::bad_alloc&) {  // stays unknown
}

const char* Recorder::kernel_name(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto known = kernels_.find(handle);
  return known == kernels_.end() ? "(unknown kernel)" : known->second;
}

void Recorder::on_look(std::function<void()> look) {
  const std::lock_guard lock(mutex_);
  looks_.push_back(std::move(look));
}

void Recorder::run() {
  ::pthread_setname_np(::pthread_self(), "gpupool-trace");
  try {
    record();
  } catch (const std::bad_alloc&) {
    stop_recording("out of memory");
  } catch (const std::exception& failure) {
    stop_recording(failure.what());
  }
}

// The program goes on; finish() writes what is kept.
void Recorder::stop_recording(const char* reason) {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  try {
    warn_("timeline: " + std::string(reason) + "; later events are not recorded");
  } catch (const std::exception&) {  // not even that
  }
}

void Recorder::record() {
  std::unique_lock lock(mutex_);
  while (!finished_) {
    wake_.wait_for(lock, kWriteEvery, [this] { return finished_ || events_.size() >= kMostEvents / 2; });
    const auto looks = looks_;
    const bool finished = finished_;
    lock.unlock();
    for (const auto& look : looks) {
      if (!finished) look();
    }
    flush();
    lock.lock();
  }
}

void Recorder::flush() {
  const std::lock_guard writing(writing_);
  std::vector<TraceEvent> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
  }
  write(events);
}

void Recorder::finish(const TraceEvent& last) {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  wake_.notify_all();
  try {
    flush();
  } catch (const std::bad_alloc&) {  // counted; `last` may need less
  }
  TraceEvent counted = last;
  counted.arguments.front() = {"dropped_here", dropped()};
  std::string text;
  append_json(counted, text);
  const std::lock_guard writing(writing_);
  (void)file_.append_last(text);
}

void Recorder::write(const std::vector<TraceEvent>& events) {
  std::string text;
  size_t unwritten = events.size(), batch = 0;
  try {
    for (const TraceEvent& event : events) {
      if (!text.empty()) text += ",\n";
      append_json(event, text);
      ++batch;
      if (text.size() < TraceFile::kMostAtOnce / 2) continue;
      const bool good = append(std::exchange(text, {}), batch);
      unwritten -= std::exchange(batch, 0);
      // Once only: each attempt may wait for another process's lock.
      if (!good) return count_dropped(unwritten);
    }
    append(text, batch);
  } catch (const std::bad_alloc&) {
    count_dropped(unwritten);
    throw;
  }
}

bool Recorder::append(const std::string& text, size_t events) {
  if (text.empty()) return true;
  if (!broken_) {
    const auto appended = file_.append(text);
    if (appended) return true;
    broken_ = appended.error().code == ErrorCode::limit;
    if (broken_ || !std::exchange(warned_, true))
      warn_("timeline: " + appended.error().message +
            (broken_ ? "; later events are not recorded" : "; events are missing"));
  }
  count_dropped(events);
  return false;
}

}  // namespace gpupool::client::timeline
