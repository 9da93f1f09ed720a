// Structured log lines of poold and its workers: one event name and key=value pairs, as text or as JSON.
//
// Goes to one descriptor, a line per write(2), so that the lines of several processes never mix. Any thread
// may log; start() is called once, before that. Values come from clients too: everything that is no plain
// text is escaped.
#pragma once
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
void write(Level level, std::string_view event, std::span<const Field> fields);
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
const char* name_of(Format format);

}  // namespace gpupool::log
