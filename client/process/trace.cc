#include "client/process/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/timeline/timeline.h"
#include "protocol/driver/exports.h"
#include "protocol/wire/frame.h"

extern "C" {
// From trace_stubs.S, by the rows of symbols.def: stubs that count and then jump to the function, and their
// counters.
extern const char gpupool_counting_stubs[] __attribute__((visibility("hidden")));
extern uint64_t gpupool_counting_counts[] __attribute__((visibility("hidden")));
}

namespace gpupool::client::trace {

constinit std::atomic<bool> enabled{false};

namespace {

struct Name {
  uint16_t id;
  const char* name;
};
constexpr Name kNames[] = {
#define CUDA_CALL(id, name, ...) {id, #name},
#define CUDA_CALL_CUSTOM_EXPORT CUDA_CALL
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
#undef CUDA_CALL
#undef CUDA_CALL_CUSTOM_EXPORT
#undef CUDA_BY_HAND
#define COMMAND(id, name) {id, #name},
#include "protocol/wire/commands.def"
#undef COMMAND
};

constexpr uint16_t kRowIds = [] {
  uint16_t most = 0;
  for (const Name& name : kNames) {
    if (name.id < wire::kFirstCommand) most = std::max(most, name.id);
  }
  return static_cast<uint16_t>(most + 1);
}();
constexpr uint16_t kCommands = [] {
  uint16_t count = 0;
  for (const Name& name : kNames) count = static_cast<uint16_t>(count + (name.id >= wire::kFirstCommand));
  return count;
}();

enum Column { kCalls, kRoundTrips, kSent, kReceived, kInClient, kWaited, kColumns };
using Counters = std::array<std::atomic<uint64_t>, kColumns>;
using Values = std::array<uint64_t, kColumns>;
constinit std::array<Counters, kRowIds + kCommands> counters{};

size_t place_of(uint16_t id) {
  const size_t place = id < wire::kFirstCommand ? id : kRowIds + (id - wire::kFirstCommand);
  return std::min(place, counters.size() - 1);
}
Counters& of(uint16_t id) {
  return counters[place_of(id)];
}
// Returns the name of a row or command.
const char* name_of(uint16_t id) {
  static const auto names = [] {
    std::array<const char*, kRowIds + kCommands> by_place{};
    for (const Name& name : kNames) by_place[place_of(name.id)] = name.name;
    return by_place;
  }();
  const char* const name = names[place_of(id)];
  return name ? name : "?";
}
void add(uint16_t id, Column column, uint64_t value) {
  of(id)[column].fetch_add(value, std::memory_order_relaxed);
}

struct Settings {
  bool table = false;  // GPUPOOL_TRACE=1
  bool stats = false;  // GPUPOOL_STATS=1
  pid_t process = 0;
};
constinit Settings settings;

bool is_one(const char* variable) {
  const char* text = std::getenv(variable);
  return text && std::strcmp(text, "1") == 0;
}

// Bypasses stdio: the program may have closed or redirected its FILE objects.
struct Output {
  int descriptor;
  void line(const char* format, ...) const __attribute__((format(printf, 2, 3)));
};
void Output::line(const char* format, ...) const {
  char text[512];
  int length = std::snprintf(text, sizeof text, "gpupool: ");
  va_list arguments;
  va_start(arguments, format);
  length += std::vsnprintf(text + length, sizeof text - static_cast<size_t>(length) - 1, format, arguments);
  va_end(arguments);
  length = std::min<int>(length, sizeof text - 2);
  text[length++] = '\n';
  [[maybe_unused]] const ssize_t written = write(descriptor, text, static_cast<size_t>(length));
}

int open_output() {
  const char* wanted = std::getenv("GPUPOOL_TRACE_FILE");
  if (!wanted || !*wanted) return dup(STDERR_FILENO);
  std::string path(wanted);
  for (size_t at = path.find("%p"); at != std::string::npos; at = path.find("%p", at)) {
    path.replace(at, 2, std::to_string(getpid()));
  }
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  return descriptor >= 0 ? descriptor : dup(STDERR_FILENO);
}

double milliseconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-6;
}

void print_row(const Output& out, const char* name, const Values& v) {
  out.line("%-28s %10llu %11llu %14llu %14llu %12.3f %12.3f", name,
           static_cast<unsigned long long>(v[kCalls]), static_cast<unsigned long long>(v[kRoundTrips]),
           static_cast<unsigned long long>(v[kSent]), static_cast<unsigned long long>(v[kReceived]),
           milliseconds(v[kInClient]), milliseconds(v[kWaited]));
}

using Rows = std::vector<std::pair<const char*, Values>>;

Rows take_rows() {
  Rows rows;
  for (const Name& name : kNames) {
    Values values{};
    for (size_t i = 0; i < kColumns; ++i) values[i] = of(name.id)[i].load(std::memory_order_relaxed);
    if (values[kCalls] != 0) rows.emplace_back(name.name, values);
  }
  return rows;
}

// Sorted by time waited, then by number of calls.
void print_table(const Output& out, Rows rows, const Values& all) {
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second[kWaited], a.second[kCalls]) > std::pair(b.second[kWaited], b.second[kCalls]);
  });
  out.line("%-28s %10s %11s %14s %14s %12s %12s", "call", "calls", "round trips", "bytes sent",
           "bytes received", "client (ms)", "waited (ms)");
  for (const auto& [name, values] : rows) print_row(out, name, values);
  print_row(out, "total", all);
  std::vector<std::pair<uint64_t, const char*>> asked;
  for (uint32_t i = 0; i < cuda::symbol_count(); ++i) {
    const uint64_t count = __atomic_load_n(&gpupool_counting_counts[i], __ATOMIC_RELAXED);
    if (count != 0) asked.emplace_back(count, cuda::symbol_name(i));
  }
  if (asked.empty()) return;
  std::stable_sort(asked.begin(), asked.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  out.line("%-38s %10s", "call (from cuGetProcAddress)", "calls");
  for (const auto& [count, name] : asked)
    out.line("%-38s %10llu", name, static_cast<unsigned long long>(count));
}

void print_stats(const Output& out, Rows rows, const Values& all) {
  out.line(
      "%s (process %d): %llu calls sent, %llu of them waited for a reply, %.1f ms in total; %.3f MB sent, "
      "%.3f MB received",
      program_invocation_short_name, static_cast<int>(settings.process),
      static_cast<unsigned long long>(all[kCalls]), static_cast<unsigned long long>(all[kRoundTrips]),
      milliseconds(all[kWaited]), static_cast<double>(all[kSent]) * 1e-6,
      static_cast<double>(all[kReceived]) * 1e-6);
  const auto top = [&](Column column, const char* what, auto&& text) {
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const auto& a, const auto& b) { return a.second[column] > b.second[column]; });
    std::string list;
    for (size_t i = 0; i < std::min<size_t>(rows.size(), 5) && rows[i].second[column] != 0; ++i) {
      list += std::string(i ? ", " : "") + rows[i].first + " " + text(rows[i].second);
    }
    if (!list.empty()) out.line("  %s: %s", what, list.c_str());
  };
  top(kCalls, "most frequent", [](const Values& v) { return std::to_string(v[kCalls]); });
  top(kWaited, "longest waits", [](const Values& v) {
    char text[64];
    std::snprintf(text, sizeof text, "%.1f ms (%llu)", milliseconds(v[kWaited]),
                  static_cast<unsigned long long>(v[kRoundTrips]));
    return std::string(text);
  });
}

// A destructor, to run after exit handlers, which may still call the driver. Prints nothing in a forked
// child.
__attribute__((destructor)) void print_at_exit() {
  if ((!settings.table && !settings.stats) || getpid() != settings.process) return;
  const int descriptor = open_output();
  if (descriptor < 0) return;
  try {
    const Output out{descriptor};
    const Rows rows = take_rows();
    Values all{};
    for (const auto& [name, values] : rows) {
      for (size_t i = 0; i < kColumns; ++i) all[i] += values[i];
    }
    if (settings.table) print_table(out, rows, all);
    if (settings.stats) print_stats(out, rows, all);
  } catch (...) {  // out of memory; the process is exiting anyway
  }
  close(descriptor);
}

}  // namespace

void start() {
  static std::once_flag once;
  std::call_once(once, [] {
    settings = {is_one("GPUPOOL_TRACE"), is_one("GPUPOOL_STATS"), getpid()};
    enabled.store(settings.table || settings.stats);
  });
}

void* counted(void* function) {
#if defined(__x86_64__)
  constexpr size_t kStubBytes = 32;
  for (uint32_t i = 0; i < cuda::symbol_count(); ++i) {
    if (cuda::symbol_address(i) == function)
      return const_cast<char*>(gpupool_counting_stubs) + i * kStubBytes;
  }
#endif
  return function;
}

void count_call(uint16_t id, size_t bytes_sent, std::chrono::nanoseconds in_client, unsigned server,
                uint64_t number) {
  add(id, kCalls, 1);
  add(id, kSent, bytes_sent);
  add(id, kInClient, static_cast<uint64_t>(in_client.count()));
  if (timeline::on()) timeline::note_sent(name_of(id), number, bytes_sent, server);
}
void count_round_trip(uint16_t id, size_t bytes_received, std::chrono::nanoseconds waited, unsigned server) {
  add(id, kRoundTrips, 1);
  add(id, kReceived, bytes_received);
  add(id, kWaited, static_cast<uint64_t>(waited.count()));
  if (!timeline::on()) return;
  const bool for_room = id == static_cast<uint16_t>(wire::Command::await_room);
  timeline::note_round_trip(for_room ? "wait: the server's queue is full" : "wait: reply", name_of(id),
                            bytes_received, timeline::now() - waited.count(), server);
}
void count_sent(uint16_t id, size_t bytes, unsigned server) {
  add(id, kSent, bytes);
  if (timeline::on()) timeline::note_sent(name_of(id), 0, bytes, server);
}
void count_received(uint16_t id, size_t bytes, unsigned server) {
  add(id, kReceived, bytes);
  if (timeline::on()) timeline::note_received(bytes, server);
}

}  // namespace gpupool::client::trace
