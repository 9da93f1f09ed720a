#include "client/process/settings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "client/process/log.h"
#include "common/files/exposure.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/wire/frame.h"

namespace gpupool::client {
namespace {

constexpr size_t kLongestToken = 4096;

std::chrono::milliseconds milliseconds_from(const char* variable, std::chrono::milliseconds otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value <= 0) {
    log_error("%s=%s: ignored, must be a positive number of milliseconds; using %lld", variable, text,
              static_cast<long long>(otherwise.count()));
    return otherwise;
  }
  return std::chrono::milliseconds(value);
}

std::optional<unsigned> bulk_connections() {
  const char* text = std::getenv("GPUPOOL_BULK_CONNECTIONS");
  if (!text || !*text) return std::nullopt;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (*end == '\0' && *text >= '0' && *text <= '9' && value <= wire::kMaxBulkConnections)
    return static_cast<unsigned>(value);
  log_error("GPUPOOL_BULK_CONNECTIONS=%s: ignored, must be a number from 0 to %u", text,
            wire::kMaxBulkConnections);
  return std::nullopt;
}

compression::Policy compression_policy() {
  const char* text = std::getenv("GPUPOOL_COMPRESSION");
  if (!text || !*text) return compression::Policy::automatic;
  const auto policy = compression::parse_policy(text);
  if (!policy) log_error("GPUPOOL_COMPRESSION=%s: ignored, must be auto, off or always; using auto", text);
  return policy.value_or(compression::Policy::automatic);
}

Carrier carrier() {
  const char* text = std::getenv("GPUPOOL_TRANSPORT");
  if (!text || !*text || std::strcmp(text, "auto") == 0) return Carrier::automatic;
  if (std::strcmp(text, "tcp") == 0) return Carrier::tcp;
  if (std::strcmp(text, "rdma") == 0) return Carrier::rdma;
  log_error("GPUPOOL_TRANSPORT=%s: ignored, must be auto, tcp or rdma; using auto", text);
  return Carrier::automatic;
}

std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? text : "";
}

// Returns the first line without surrounding blanks.
std::string only_line(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const std::string line = text.substr(0, text.find('\n'));
  const size_t first = line.find_first_not_of(kBlanks);
  return first == std::string::npos ? "" : line.substr(first, line.find_last_not_of(kBlanks) + 1 - first);
}

std::string token_from_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char text[kLongestToken];
  const ssize_t length = file >= 0 ? ::read(file, text, sizeof text) : -1;
  if (length < 0)
    log_error("GPUPOOL_TOKEN_FILE=%s: cannot be read: %s", path.c_str(),
              std::generic_category().message(errno).c_str());
  struct stat about {};
  const files::OthersAccess exposure =
      length > 0 && ::fstat(file, &about) == 0 ? files::access_of_others(about) : files::OthersAccess{};
  if (file >= 0) ::close(file);
  if (exposure.writable) {
    log_error("GPUPOOL_TOKEN_FILE=%s: not used, because it is writable by other users; use chmod 600",
              path.c_str());
    return "";
  }
  if (exposure.readable)
    log_error("GPUPOOL_TOKEN_FILE=%s: readable by other users; use chmod 600", path.c_str());
  const std::string token = length > 0 ? only_line(std::string(text, static_cast<size_t>(length))) : "";
  if (length >= 0 && token.empty())
    log_error("GPUPOOL_TOKEN_FILE=%s: no token in its first line, so none is sent; write the token there",
              path.c_str());
  return token;
}

bool is(const char* variable, const char* value) {
  const char* text = std::getenv(variable);
  return text && std::strcmp(text, value) == 0;
}

}  // namespace

std::string token_from_environment() {
  const std::string file = text_of("GPUPOOL_TOKEN_FILE");
  return file.empty() ? only_line(text_of("GPUPOOL_TOKEN")) : token_from_file(file);
}

Settings settings_from_environment() {
  Settings settings;
  settings.tenant = text_of("GPUPOOL_TENANT");
  settings.token = token_from_environment();
  settings.tls = {.ca = text_of("GPUPOOL_TLS_CA"),
                  .certificate = text_of("GPUPOOL_TLS_CERT"),
                  .key = text_of("GPUPOOL_TLS_KEY"),
                  .secret = {}};
  settings.carrier = carrier();
  settings.rdma = transport::rdma_options_from_environment(
      [](const std::string& mistake) { log_error("%s", mistake.c_str()); });
  settings.shared_memory = !is("GPUPOOL_SHM", "0");
  settings.bulk_connections = bulk_connections();
  settings.compression = compression_policy();
  settings.every_call_waits = is("GPUPOOL_SYNC", "1");
  settings.launch_blocking = is("CUDA_LAUNCH_BLOCKING", "1");
  settings.connect_timeout = milliseconds_from("GPUPOOL_CONNECT_TIMEOUT_MS", settings.connect_timeout);
  settings.dead_peer_timeout = milliseconds_from("GPUPOOL_DEAD_PEER_TIMEOUT_MS", settings.dead_peer_timeout);
  return settings;
}

}  // namespace gpupool::client
