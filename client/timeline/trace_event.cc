#include "client/timeline/trace_event.h"

#include <chrono>
#include <cstdio>

#include "common/text/printable.h"

namespace gpupool::client::timeline {
namespace {

// Trace events count in microseconds.
void append_time(const char* key, int64_t nanoseconds, std::string& out) {
  char text[64];
  const int64_t positive = nanoseconds < 0 ? 0 : nanoseconds;
  const int length =
      std::snprintf(text, sizeof text, ",\"%s\":%lld.%03lld", key, static_cast<long long>(positive / 1000),
                    static_cast<long long>(positive % 1000));
  out.append(text, static_cast<size_t>(length));
}

std::string value_text(const TraceEvent::Argument& argument) {
  if (!argument.is_size) return std::to_string(argument.value);
  char text[64];
  std::snprintf(text, sizeof text, "\"%u x %u x %u\"", static_cast<unsigned>(argument.value & 0x7fffffff),
                static_cast<unsigned>(argument.value >> 31 & 0xffff),
                static_cast<unsigned>(argument.value >> 47 & 0xffff));
  return text;
}

void append_arguments(const TraceEvent& event, std::string& out) {
  if (!event.arguments.front().key) return;
  out += ",\"args\":{";
  const char* separator = "";
  for (const TraceEvent::Argument& argument : event.arguments) {
    if (!argument.key) break;
    out += separator;
    append_json_string(argument.key, out);
    out += ':';
    if (argument.text)
      append_json_string(argument.text, out);
    else
      out += value_text(argument);
    separator = ",";
  }
  out += '}';
}

}  // namespace

int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

void append_json(const TraceEvent& event, std::string& out) {
  out += "{\"ph\":\"";
  out += event.phase;
  out += "\",\"name\":";
  append_json_string(event.name, out);
  if (*event.category != '\0') {
    out += ",\"cat\":";
    append_json_string(event.category, out);
  }
  out += ",\"pid\":" + std::to_string(event.process) + ",\"tid\":" + std::to_string(event.track);
  append_time("ts", event.begin, out);
  if (event.phase == 'X') append_time("dur", event.duration, out);
  if (event.phase == 'i') out += ",\"s\":\"p\"";
  append_arguments(event, out);
  out += '}';
}

}  // namespace gpupool::client::timeline
