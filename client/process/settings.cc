#include "client/process/settings.h"

#include <cstdlib>
#include <cstring>

#include "client/process/log.h"
#include "protocol/environment.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/wire/frame.h"

namespace gpupool::client {
namespace {

// Longest time limit, 11 days: much longer ones would overflow the clock and have passed at once.
constexpr long kLongestMilliseconds = 1'000'000'000;

std::chrono::milliseconds milliseconds_from(const char* variable, std::chrono::milliseconds otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value <= 0 || value > kLongestMilliseconds) {
    log_error("%s=%s: ignored, must be a number of milliseconds from 1 to %ld; using %lld", variable, text,
              kLongestMilliseconds, static_cast<long long>(otherwise.count()));
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

void report(const std::string& mistake) {
  log_error("%s", mistake.c_str());
}

bool is(const char* variable, const char* value) {
  const char* text = std::getenv(variable);
  return text && std::strcmp(text, value) == 0;
}

}  // namespace

std::string token_from_environment() {
  return gpupool::token_from_environment(&report);
}

Settings settings_from_environment() {
  Settings settings;
  settings.tenant = environment_text("GPUPOOL_TENANT");
  settings.token = token_from_environment();
  settings.tls = tls_from_environment();
  settings.carrier = carrier();
  settings.rdma = transport::rdma_options_from_environment(&report);
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
