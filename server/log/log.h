// Structured log lines of poold and its workers: one event name and key=value pairs, as text or as JSON.
//
// Goes to one descriptor, a line at a time. Any thread may log; start() is called once, before that. Values come from
// clients too: everything that is no plain text is escaped. A worker's lines go to poold, which checks them and puts them into its own log.
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

struct Number {  // that is no whole one, as text
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

// `component` stands in every line: "poold", for example. The descriptor stays the caller's.
void start(int descriptor, Level level, Format format, std::string component);
// In a worker: lines for poold (relayed_line.h).
void start_to_poold(int descriptor, Level level);
// From now on a thread writes, and nobody who logs waits for whoever reads the log: lines that have no room are dropped and counted. Once.
void write_in_background();
// Waits, at a process's end, until that thread has written all. False: not in time.
bool flush(std::chrono::milliseconds patience);
void write(Level level, std::string_view event, std::span<const Field> fields);
// In another process's name.
struct Process {
  std::string component;
  pid_t pid;
};
void write_for(const Process& process, Level level, std::string_view event, std::span<const Field> fields);
inline void write(Level level, std::string_view event, std::initializer_list<Field> fields) {
  write(level, event, std::span(fields.begin(), fields.size()));
}

// A line of JSON with the time, the event and the fields, for another file than the log.
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

// False for an unknown name.
bool parse(std::string_view name, Level& level);
bool parse(std::string_view name, Format& format);
const char* name_of(Level level);

}  // namespace gpupool::log
