// Structured log lines of poold, its workers and pool-scheduler: an event name and key=value pairs, as text
// or JSON.
//
// Writes whole lines to one descriptor. Any thread may log, after start() has been called once. Values may
// come from clients: all but plain text is escaped. A worker's lines go to poold, which validates them and
// writes them to its own log.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace gpupool::log {

enum class Level { debug, info, warning, error, off };
enum class Format { text, json };

struct Number {  // a number with a fraction, as text
  std::string text;
};

struct Field {
  std::string_view key;
  std::string value;
  bool quoted;  // false: a number

  Field(std::string_view key, std::string_view value) : key(key), value(value), quoted(true) {}
  Field(std::string_view key, const char* value) : key(key), value(value), quoted(true) {}
  Field(std::string_view key, Number value) : key(key), value(std::move(value.text)), quoted(false) {}
  template <std::integral T>
  Field(std::string_view key, T value) : key(key), value(std::to_string(value)), quoted(false) {}
};

// `component`, e.g. "poold", is part of every line. The descriptor stays the caller's.
void start(int descriptor, Level level, Format format, std::string component);
// In a worker: writes lines for poold (relayed_line.h).
void start_to_poold(int descriptor, Level level);
// Starts a thread that writes, so that logging does not wait for the log's reader. Lines without room in its
// queue are dropped and counted. Call once.
void write_in_background();
// Waits, at the end of the process, until all lines are written. Returns false on timeout.
bool flush(std::chrono::milliseconds patience);
void write(Level level, std::string_view event, std::span<const Field> fields);
// Logs in the name of another process.
struct Process {
  std::string component;
  pid_t pid;
};
void write_for(const Process& process, Level level, std::string_view event, std::span<const Field> fields);
inline void write(Level level, std::string_view event, std::initializer_list<Field> fields) {
  write(level, event, std::span(fields.begin(), fields.size()));
}

// Returns a line of JSON with the time, the event and the fields, for a file other than the log.
std::string json_line(std::string_view event, std::span<const Field> fields);

inline void debug(std::string_view event, std::initializer_list<Field> fields = {}) {
  write(Level::debug, event, fields);
}
inline void info(std::string_view event, std::initializer_list<Field> fields = {}) {
  write(Level::info, event, fields);
}
inline void warning(std::string_view event, std::initializer_list<Field> fields = {}) {
  write(Level::warning, event, fields);
}
inline void error(std::string_view event, std::initializer_list<Field> fields = {}) {
  write(Level::error, event, fields);
}

// Return false for an unknown name.
bool parse(std::string_view name, Level& level);
bool parse(std::string_view name, Format& format);
const char* name_of(Level level);

}  // namespace gpupool::log
