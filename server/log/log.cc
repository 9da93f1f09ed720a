#include "server/log/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

namespace gpupool::log {
namespace {

class DescriptorSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DescriptorSink(int descriptor) : descriptor_(descriptor) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const char* at = line.data();
    for (size_t left = line.size(); left > 0;) {
      const ssize_t written = ::write(descriptor_, at, left);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // a log that cannot be written must not stop the work
      at += written;
      left -= static_cast<size_t>(written);
    }
  }
  void flush_() override {}

  const int descriptor_;
};

struct State {
  std::unique_ptr<spdlog::logger> logger;
  Format format = Format::text;
};
State* g_state = nullptr;  // not freed at exit: threads may log until the process ends

constexpr const char* kLevels[] = {"debug", "info", "warning", "error", "off"};
constexpr const char* kFormats[] = {"text", "json"};

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      break;
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

// A string literal of JSON. Bytes beyond ASCII are escaped one by one: clients may send what is no UTF-8.
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

}  // namespace

void start(int descriptor, Level level, Format format, std::string component) {
  auto logger = std::make_unique<spdlog::logger>(component, std::make_shared<DescriptorSink>(descriptor));
  logger->set_level(to_spdlog(level));
  const char* pattern = format == Format::json
                            ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","component":"%n","pid":%P,%v})"
                            : "%Y-%m-%dT%H:%M:%S.%eZ %l %n[%P] %v";
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc));
  delete std::exchange(g_state, new State{std::move(logger), format});
}

namespace {

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

}  // namespace

std::string json_line(std::string_view event, std::span<const Field> fields) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  char seconds[32], milliseconds[8];
  std::strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(milliseconds, sizeof milliseconds, ".%03u", static_cast<unsigned>(now.tv_nsec / 1'000'000) % 1000);
  return "{\"time\":\"" + std::string(seconds) + milliseconds + "Z\"," + text_of(true, event, fields) + "}\n";
}

void write(Level level, std::string_view event, std::span<const Field> fields) {
  if (g_state == nullptr || !g_state->logger->should_log(to_spdlog(level))) return;
  const std::string line = text_of(g_state->format == Format::json, event, fields);
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
const char* name_of(Format format) {
  return kFormats[static_cast<size_t>(format)];
}

}  // namespace gpupool::log
