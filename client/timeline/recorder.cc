#include "client/timeline/recorder.h"

#include <pthread.h>

#include <cstring>
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
  const std::string_view cut = text.substr(0, kLongestName);
  const std::lock_guard lock(mutex_);
  if (const auto known = names_.find(cut); known != names_.end()) return known->second;
  if (names_.size() >= kMostNames || name_bytes_ + cut.size() > kMostNameBytes) return "(too many names)";
  char* const copy = new char[cut.size() + 1];
  std::memcpy(copy, cut.data(), cut.size());
  copy[cut.size()] = '\0';
  name_bytes_ += cut.size();
  return names_.emplace(cut, copy).first->second;
} catch (const std::bad_alloc&) {
  return "(out of memory)";
}

void Recorder::name_kernel(uint64_t handle, const char* name) {
  const std::lock_guard lock(mutex_);
  if (kernels_.size() < kMostNames) kernels_[handle] = name;
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
  flush();
  TraceEvent counted = last;
  counted.arguments.front() = {"dropped_here", dropped()};
  std::string text;
  append_json(counted, text);
  const std::lock_guard writing(writing_);
  (void)file_.append_last(text);
}

void Recorder::write(const std::vector<TraceEvent>& events) {
  std::string text;
  size_t counted = 0, appended = 0;
  for (const TraceEvent& event : events) {
    if (!text.empty()) text += ",\n";
    append_json(event, text);
    ++counted;
    if (text.size() < TraceFile::kMostAtOnce / 2) continue;
    appended += counted;
    // Once only: each attempt may wait for another process's lock.
    if (!append(std::exchange(text, {}), std::exchange(counted, 0)))
      return count_dropped(events.size() - appended);
  }
  append(text, counted);
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
