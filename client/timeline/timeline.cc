#include "client/timeline/timeline.h"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "client/timeline/recorder.h"
#include "client/timeline/server_track.h"
#include "client/timeline/trace_event.h"
#include "client/timeline/trace_file.h"

namespace gpupool::client::timeline {

constinit std::atomic<bool> enabled{false};

namespace {

constexpr unsigned kMostServers = 64;  // kMaxServers of session.h
// Calls that take less and send nothing are not recorded: programs make very many of them.
constexpr int64_t kShortestCall = 5'000;  // nanoseconds
// Rows of servers have numbers of processes that do not exist: above Linux's largest pid (2^22), and below
// 2^32, as viewers need.
constexpr int64_t kFirstServerProcess = int64_t{1} << 30;

struct Timeline {
  Timeline(TraceFile file, std::string name, Recorder::Warn warn)
      : recorder(std::move(file), std::move(warn)), program(std::move(name)), process(::getpid()) {}
  Recorder recorder;
  const std::string program;
  const int64_t process;
  std::mutex mutex;  // of writers of `servers`
  std::array<std::atomic<ServerTrack*>, kMostServers> servers{};
};
// Set before `enabled`; never destroyed.
constinit std::atomic<Timeline*> timeline{nullptr};

constinit thread_local detail::Call* t_call = nullptr;
constinit thread_local Timeline* t_named_in = nullptr;  // the timeline that knows this thread's name
constinit thread_local uint64_t t_track = 0;

// Returns the calling thread's track.
uint64_t this_thread(Timeline& in) {
  if (t_named_in == &in) return t_track;
  t_named_in = &in;
  t_track = static_cast<uint64_t>(::syscall(SYS_gettid));  // the function is too new for old C libraries
  char name[16] = "thread";
  (void)::pthread_getname_np(::pthread_self(), name, sizeof name);
  in.recorder.push({.phase = 'M',
                    .name = "thread_name",
                    .process = in.process,
                    .track = t_track,
                    .arguments = {{{"name", 0, in.recorder.intern(name)}}}});
  return t_track;
}

ServerTrack* server_at(unsigned index) {
  Timeline* const in = timeline.load(std::memory_order_acquire);
  return in && index < kMostServers ? in->servers[index].load(std::memory_order_acquire) : nullptr;
}

// Runs after exit handlers, which may still call the driver.
__attribute__((destructor)) void finish_at_exit() {
  try {
    finish();
  } catch (...) {  // out of memory; the process is exiting anyway
  }
}

// Returns the name of a C++ function as its source has it.
std::string readable(const std::string& name) {
  constexpr size_t kLongest = 1024;  // longer names take long
  if (!name.starts_with("_Z") || name.size() > kLongest) return name;
  int status = -1;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

}  // namespace

bool start(const char* path, const char* program, std::function<void(const std::string&)> warn) {
  if (timeline.load()) return on();
  auto file = TraceFile::open(path);
  if (!file) {
    warn("GPUPOOL_TIMELINE: no timeline is written to " + std::string(path) + ": " + file.error().message);
    return false;
  }
  auto* const made = new Timeline(std::move(*file), std::string(program) + " " + std::to_string(::getpid()),
                                  std::move(warn));
  made->recorder.push({.phase = 'M',
                       .name = "process_name",
                       .process = made->process,
                       .arguments = {{{"name", 0, made->recorder.intern(program)}}}});
  timeline.store(made, std::memory_order_release);
  enabled.store(true, std::memory_order_release);
  return true;
}

void finish() {
  Timeline* const in = timeline.load(std::memory_order_acquire);
  if (!on() || !in || in->process != ::getpid()) return;
  for (const auto& server : in->servers) {
    if (ServerTrack* const track = server.load(std::memory_order_acquire)) track->finish();
  }
  enabled.store(false, std::memory_order_relaxed);
  in->recorder.finish({.phase = 'i',
                       .begin = now(),
                       .name = "end of the timeline",
                       .category = "timeline",
                       .process = in->process,
                       .track = static_cast<uint64_t>(::getpid())});
}

void stop_in_child() {
  enabled.store(false, std::memory_order_relaxed);
  timeline.store(nullptr, std::memory_order_relaxed);
}

void detail::begin_call(Call& call, const char* function) {
  if (t_call) return;
  call.function = function;
  call.begin = now();
  t_call = &call;
}

void detail::end_call(Call& call) {
  if (!call.function) return;
  t_call = nullptr;
  Timeline* const in = timeline.load(std::memory_order_acquire);
  const int64_t end = now();
  const bool named = std::strncmp(call.function, "cu", 2) == 0;
  if (!on() || !in || (!call.command && (!named || end - call.begin < kShortestCall))) return;
  TraceEvent event{.begin = call.begin,
                   .duration = end - call.begin,
                   .name = !named && call.command ? call.command : call.function,
                   .category = "call",
                   .process = in->process,
                   .track = this_thread(*in)};
  if (call.command) {
    event.arguments = {{{"server", call.server},
                        {"command", call.number},
                        {"bytes sent", call.sent},
                        {"bytes received", call.received},
                        {"round trips", call.round_trips}}};
  }
  in->recorder.push(event);
}

void note_wait(const char* reason, int64_t begin, const char* command, unsigned server) {
  Timeline* const in = timeline.load(std::memory_order_acquire);
  if (!on() || !in) return;
  TraceEvent event{.begin = begin,
                   .duration = now() - begin,
                   .name = reason,
                   .category = "wait",
                   .process = in->process,
                   .track = this_thread(*in)};
  event.arguments[0] = {"server", server};
  if (command) event.arguments[1] = {"command", 0, command};
  in->recorder.push(event);
}

void note_sent(const char* command, uint64_t number, uint64_t bytes, unsigned server) {
  if (ServerTrack* const track = server_at(server)) track->count(bytes, 0, 0);
  if (!t_call) return;
  if (!t_call->command) t_call->command = command;
  if (number != 0) t_call->number = number;
  t_call->server = server;
  t_call->sent += bytes;
}

void note_received(uint64_t bytes, unsigned server) {
  if (ServerTrack* const track = server_at(server)) track->count(0, bytes, 0);
  if (t_call) t_call->received += bytes;
}

void note_round_trip(const char* reason, const char* command, uint64_t bytes, int64_t begin,
                     unsigned server) {
  if (ServerTrack* const track = server_at(server)) track->count(0, bytes, 1);
  if (t_call) {
    t_call->received += bytes;
    ++t_call->round_trips;
  }
  note_wait(reason, begin, command, server);
}

void add_server(unsigned index, const std::string& name, std::function<void()> look) {
  Timeline* const in = timeline.load(std::memory_order_acquire);
  if (!on() || !in || index >= kMostServers) return;
  const std::lock_guard lock(in->mutex);
  if (in->servers[index].load()) return;
  auto* const track = new ServerTrack(in->recorder, kFirstServerProcess + in->process * kMostServers + index,
                                      in->process, name + " for " + in->program);
  in->servers[index].store(track, std::memory_order_release);
  in->recorder.on_look(std::move(look));
}

void clock_asked(unsigned index, uint64_t command) {
  if (ServerTrack* const track = server_at(index)) track->asked(command);
}

uint64_t clock_answered(unsigned index) {
  ServerTrack* const track = server_at(index);
  return track ? track->answered() : 0;
}

bool take_message(unsigned index, std::span<const std::byte> body) {
  ServerTrack* const track = server_at(index);
  return track && track->take(body);
}

void name_kernel(uint64_t handle, const std::string& name) {
  if (Timeline* const in = timeline.load(std::memory_order_acquire))
    in->recorder.name_kernel(handle, in->recorder.intern(readable(name)));
}

void note_session(unsigned index, const char* name, int64_t begin, const std::string& detail) {
  if (ServerTrack* const track = server_at(index)) track->note(name, begin, now() - begin, detail);
}

}  // namespace gpupool::client::timeline
