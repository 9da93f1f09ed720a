#include "server/softgpu/runtime/config.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "protocol/driver/driver_version.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

std::string_view variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::optional<uint64_t> parse_number(std::string_view text, std::string_view& rest) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  rest = text.substr(static_cast<size_t>(end - text.data()));
  return value;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  std::string_view unit;
  const auto number = parse_number(text, unit);
  if (!number) return std::nullopt;
  int shift = 0;
  if (unit == "KiB" || unit == "K" || unit == "k")
    shift = 10;
  else if (unit == "MiB" || unit == "M" || unit == "m")
    shift = 20;
  else if (unit == "GiB" || unit == "G" || unit == "g")
    shift = 30;
  else if (!unit.empty() && unit != "B")
    return std::nullopt;
  if (*number > (UINT64_MAX >> shift)) return std::nullopt;
  return *number << shift;
}

std::string invalid_setting(const char* name, std::string_view value, const char* expected) {
  return std::string("softgpu: ") + name + "=" + std::string(value) + ": expected " + expected;
}

uint64_t default_memory() {
  const uint64_t host = static_cast<uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 0l)) *
                        static_cast<uint64_t>(std::max(sysconf(_SC_PAGESIZE), 0l));
  const uint64_t half = host / 2 / kGranule * kGranule;
  return std::clamp<uint64_t>(half, kMinMemoryBytes, 4ull << 30);
}

// Reads the settings of hardware queues. Invalid values of CUDA's own variables are ignored, as in NVIDIA's
// driver.
std::optional<std::string> read_queues(Config& config) {
  std::string_view rest;
  if (const auto text = variable("SOFTGPU_QUEUE_ENTRIES"); !text.empty()) {
    const auto count = parse_number(text, rest);
    if (!count || !rest.empty() || *count == 0 || *count > kMaxQueueEntries) {
      return invalid_setting("SOFTGPU_QUEUE_ENTRIES", text, "a number of operations from 1 to 1048576");
    }
    config.queue_entries = static_cast<uint32_t>(*count);
  }
  const auto scale = variable("CUDA_SCALE_LAUNCH_QUEUES");
  if (scale == "0.25x") config.queue_entries /= 4;
  if (scale == "0.5x") config.queue_entries /= 2;
  if (scale == "2x") config.queue_entries *= 2;
  if (scale == "4x") config.queue_entries *= 4;
  config.queue_entries = std::max(config.queue_entries, 1u);
  if (const auto text = variable("CUDA_DEVICE_MAX_CONNECTIONS"); !text.empty()) {
    const auto count = parse_number(text, rest);
    if (count && rest.empty())
      config.connections = static_cast<unsigned>(std::clamp<uint64_t>(*count, 1, kMaxConnections));
  }
  return std::nullopt;
}

// Reads the settings of the simulated devices.
std::optional<std::string> read_devices(Config& config) {
  std::string_view rest;
  if (const auto text = variable("SOFTGPU_DEVICES"); !text.empty()) {
    const auto count = parse_number(text, rest);
    if (!count || !rest.empty() || *count > kMaxDevices) {
      return invalid_setting("SOFTGPU_DEVICES", text, "a number of devices from 0 to 64");
    }
    config.devices = static_cast<int>(*count);
  }
  if (const auto text = variable("SOFTGPU_COMPUTE_CAPABILITY"); !text.empty()) {
    const auto major = parse_number(text, rest);
    std::optional<uint64_t> minor;
    std::string_view end = rest;
    if (major && rest.starts_with('.')) minor = parse_number(rest.substr(1), end);
    if (!major || !minor || !end.empty() || *major < 3 || *major > 99 || *minor > 9) {
      return invalid_setting("SOFTGPU_COMPUTE_CAPABILITY", text,
                             "a compute capability from 3.0 to 99.9, for example 9.0");
    }
    config.capability_major = static_cast<int>(*major);
    config.capability_minor = static_cast<int>(*minor);
  }
  if (const auto text = variable("SOFTGPU_DRIVER_VERSION");
      !text.empty() && !cuda::parse_driver_version(text)) {
    return invalid_setting("SOFTGPU_DRIVER_VERSION", text, cuda::driver_version_wanted());
  }
  return std::nullopt;
}

std::optional<std::string> read_memory(Config& config) {
  config.memory_bytes = default_memory();
  if (const auto text = variable("SOFTGPU_MEMORY"); !text.empty()) {
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes < kMinMemoryBytes || *bytes > kRangeSize / 4) {
      return invalid_setting("SOFTGPU_MEMORY", text,
                             "bytes, or a number with KiB, MiB or GiB, at least 16MiB");
    }
    config.memory_bytes = *bytes / kGranule * kGranule;
  }
  if (const auto text = variable("SOFTGPU_CONTEXT_MEMORY"); !text.empty()) {
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes == 0)
      return invalid_setting("SOFTGPU_CONTEXT_MEMORY", text, "bytes, or a number with KiB, MiB or GiB");
    config.context_bytes = *bytes;
  }
  config.dirty_memory = variable("SOFTGPU_DIRTY_MEMORY") == "1";
  return std::nullopt;
}

// Reads how kernels are compiled and run.
std::optional<std::string> read_execution(Config& config) {
  if (const auto text = variable("SOFTGPU_THREADS"); !text.empty()) {
    std::string_view rest;
    const auto count = parse_number(text, rest);
    if (!count || !rest.empty() || *count == 0 || *count > kMaxThreads) {
      return invalid_setting("SOFTGPU_THREADS", text, "a number of threads from 1 to 1024");
    }
    config.threads = static_cast<unsigned>(*count);
  }
  if (const auto text = variable("SOFTGPU_CACHE_SIZE"); !text.empty()) {
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes < kMinCacheBytes) {
      return invalid_setting("SOFTGPU_CACHE_SIZE", text,
                             "bytes, or a number with KiB, MiB or GiB, at least 1MiB");
    }
    config.cache_bytes = *bytes;
  }
  config.cache = std::string(variable("SOFTGPU_CACHE"));
  if (const auto text = variable("SOFTGPU_CONVERGED_WARPS"); !text.empty()) {
    if (text != "0" && text != "1" && text != "all")
      return invalid_setting("SOFTGPU_CONVERGED_WARPS", text, "0, 1 or all");
    config.converge_warps = text == "0"   ? Convergence::none
                            : text == "1" ? Convergence::found
                                          : Convergence::everywhere;
  }
  config.launch_blocking = variable("CUDA_LAUNCH_BLOCKING") == "1";
  config.eager_loading = variable("CUDA_MODULE_LOADING") == "EAGER";
  return std::nullopt;
}

std::optional<std::string> read_rules_and_costs(Config& config) {
  auto rules = Rules::parse(variable("SOFTGPU_RULES"));
  if (const std::string* unknown = std::get_if<std::string>(&rules)) return *unknown;
  config.rules = std::get<Rules>(rules);
  auto costs = Costs::parse(variable("SOFTGPU_COSTS"));
  if (const std::string* wrong = std::get_if<std::string>(&costs)) return *wrong;
  config.costs = std::get<Costs>(costs);
  return std::nullopt;
}

}  // namespace

std::variant<Config, std::string> read_config() {
  Config config;
  config.instance = std::string(variable("SOFTGPU_INSTANCE"));
  config.log = variable("SOFTGPU_LOG") == "1";
  for (const auto read : {read_devices, read_memory, read_execution, read_rules_and_costs, read_queues}) {
    if (auto wrong = read(config)) return *std::move(wrong);
  }
  return config;
}

}  // namespace gpupool::softgpu
