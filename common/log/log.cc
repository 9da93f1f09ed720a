#include "common/log/log.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <utility>

#include "common/blocked_signals.h"
#include "common/log/descriptor_sink.h"

namespace gpupool::log {
namespace {

struct State {
  std::string component;  // empty in a worker: poold adds it
  Format format = Format::text;
  std::shared_ptr<DescriptorSink> sink;
  std::shared_ptr<spdlog::logger> logger;
};
State* g_state = nullptr;  // not freed at exit: threads may log until the process ends

constexpr const char* kLevels[] = {"debug", "info", "warning", "error", "off"};
constexpr const char* kFormats[] = {"text", "json"};

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warning: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
    case Level::off: break;
  }
  return spdlog::level::off;
}

bool is_plain(std::string_view value) {
  if (value.empty()) return false;
  for (const unsigned char c : value) {
    if (c <= ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '=') return false;
  }
  return true;
}

// Appends a JSON string literal. Bytes beyond ASCII are escaped one by one, since clients may send invalid
// UTF-8.
void append_quoted(std::string& out, std::string_view value) {
  out += '"';
  for (const unsigned char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < ' ' || c >= 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += static_cast<char>(c);
    }
  }
  out += '"';
}

template <class T, size_t count>
bool find_name(std::string_view name, const char* const (&names)[count], T& out) {
  for (size_t at = 0; at < count; ++at) {
    if (name == names[at]) {
      out = static_cast<T>(at);
      return true;
    }
  }
  return false;
}

std::string text_of(bool json, std::string_view event, std::span<const Field> fields) {
  std::string line;
  if (json) {
    line = "\"event\":";
    append_quoted(line, event);
  } else {
    line = event;
  }
  for (const Field& field : fields) {
    if (json) {
      line += ",\"";
      line += field.key;
      line += "\":";
    } else {
      line += ' ';
      line += field.key;
      line += '=';
    }
    if (!field.quoted || (!json && is_plain(field.value))) {
      line += field.value;
    } else {
      append_quoted(line, field.value);
    }
  }
  return line;
}

std::string text_of(const State& state, const Process& process, std::string_view event,
                    std::span<const Field> fields) {
  const std::string pid = std::to_string(process.pid);
  if (process.component.empty()) return text_of(false, event, fields);
  if (state.format == Format::text)
    return process.component + "[" + pid + "] " + text_of(false, event, fields);
  return "\"component\":\"" + process.component + "\",\"pid\":" + pid + "," + text_of(true, event, fields);
}

std::string lost_line(uint64_t lost) {
  const Field fields[] = {{"lines", lost}, {"reason", "the log's reader is slower than its writers"}};
  return text_of(*g_state, {g_state->component, ::getpid()}, "log_lines_lost", fields);
}

void set_logger(State& state, std::shared_ptr<spdlog::logger> logger, spdlog::level::level_enum level) {
  logger->set_level(level);
  logger->set_error_handler([](const std::string&) {});  // spdlog's own handler writes to stderr
  state.logger = std::move(logger);
}

void start(int descriptor, Level level, Format format, std::string component, const char* pattern) {
  auto state = std::make_unique<State>();
  state->component = std::move(component);
  state->format = format;
  state->sink = std::make_shared<DescriptorSink>(descriptor, lost_line);
  state->sink->set_formatter(
      std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc));
  set_logger(*state, std::make_shared<spdlog::logger>("", state->sink), to_spdlog(level));
  delete std::exchange(g_state, state.release());
}

// spdlog's thread and its queue. Never destroyed: the thread may be in write() when the process ends.
std::shared_ptr<spdlog::details::thread_pool>& writer() {
  static auto& pool = *new auto([] {
    const BlockedSignals blocked;
    return std::make_shared<spdlog::details::thread_pool>(DescriptorSink::kMostLines, 1);
  }());
  return pool;
}

}  // namespace

void start(int descriptor, Level level, Format format, std::string component) {
  start(descriptor, level, format, std::move(component),
        format == Format::json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})"
                               : "%Y-%m-%dT%H:%M:%S.%eZ %l %v");
}

void start_to_poold(int descriptor, Level level) {
  start(descriptor, level, Format::text, "", "%l %v");
}

void write_in_background() {
  g_state->sink->expect_background();
  // The queue never overruns: the sink has room for no more lines than the queue.
  set_logger(*g_state,
             std::make_shared<spdlog::async_logger>("", g_state->sink, writer(),
                                                    spdlog::async_overflow_policy::overrun_oldest),
             g_state->logger->level());
}

bool flush(std::chrono::milliseconds patience) {
  return g_state == nullptr || g_state->sink->await_written(patience);
}

std::string json_line(std::string_view event, std::span<const Field> fields) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  char seconds[32], milliseconds[8];
  static_cast<void>(std::strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc));
  std::snprintf(milliseconds, sizeof milliseconds, ".%03u",
                static_cast<unsigned>(now.tv_nsec / 1'000'000) % 1000);
  return "{\"time\":\"" + std::string(seconds) + milliseconds + "Z\"," + text_of(true, event, fields) + "}\n";
}

void write(Level level, std::string_view event, std::span<const Field> fields) {
  if (g_state != nullptr) write_for({g_state->component, ::getpid()}, level, event, fields);
}

void write_for(const Process& process, Level level, std::string_view event, std::span<const Field> fields) {
  if (g_state == nullptr || !g_state->logger->should_log(to_spdlog(level))) return;
  const std::string line = text_of(*g_state, process, event, fields);
  if (g_state->sink->reserve(line.size()))
    g_state->logger->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

bool parse(std::string_view name, Level& level) {
  return find_name(name, kLevels, level);
}
bool parse(std::string_view name, Format& format) {
  return find_name(name, kFormats, format);
}
const char* name_of(Level level) {
  return kLevels[static_cast<size_t>(level)];
}

}  // namespace gpupool::log
