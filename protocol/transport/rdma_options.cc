#include "protocol/transport/rdma_options.h"

#include <dirent.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace gpupool::transport {
namespace {

constexpr size_t kLongestDeviceName = 63;

// Accepts hexadecimal after 0x, in which partition keys and traffic classes are often written.
template <class T>
bool read_number(std::string_view text, unsigned lowest, unsigned highest, T& out) {
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  if (hexadecimal) text.remove_prefix(2);
  unsigned value = 0;
  const auto [end, status] =
      std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  if (text.empty() || status != std::errc() || end != text.data() + text.size()) return false;
  if (value < lowest || value > highest) return false;
  out = static_cast<T>(value);
  return true;
}

bool read_device(std::string_view text, RdmaOptions& out) {
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f && c != '/'; });
  if (text.empty() || text.size() > kLongestDeviceName || !printable) return false;
  out.device = text;
  return true;
}

bool read_mtu(std::string_view text, RdmaOptions& out) {
  unsigned bytes = 0;
  if (!read_number(text, 256, 4096, bytes) || (bytes & (bytes - 1)) != 0) return false;
  out.mtu = bytes;
  return true;
}

bool read_setup(std::string_view text, RdmaOptions& out) {
  if (text == "auto")
    out.setup = RdmaOptions::Setup::automatic;
  else if (text == "manager")
    out.setup = RdmaOptions::Setup::manager;
  else if (text == "addresses")
    out.setup = RdmaOptions::Setup::addresses;
  else
    return false;
  return true;
}

constexpr RdmaSetting kSettings[] = {
    {"device", "GPUPOOL_RDMA_DEVICE", "the name of a device, for example mlx5_0",
     "the RDMA device, for example mlx5_0 [the one with the connection's address, else the first that is up]",
     read_device},
    {"port", "GPUPOOL_RDMA_PORT", "a port of a device, 1 to 255", "port of the device [the first that is up]",
     [](std::string_view text, RdmaOptions& out) { return read_number(text, 1, 255, out.port); }},
    {"gid-index", "GPUPOOL_RDMA_GID_INDEX", "an index from 0 to 255",
     "index in the port's GID table [the connection's address, RoCE v2 before v1]",
     [](std::string_view text, RdmaOptions& out) { return read_number(text, 0, 255, out.gid_index); }},
    {"mtu", "GPUPOOL_RDMA_MTU", "256, 512, 1024, 2048 or 4096", "bytes per packet, 256 to 4096 [the port's]",
     read_mtu},
    {"traffic-class", "GPUPOOL_RDMA_TRAFFIC_CLASS", "a number from 0 to 255",
     "traffic class of packets; for RoCE four times the DSCP [0]",
     [](std::string_view text, RdmaOptions& out) { return read_number(text, 0, 255, out.traffic_class); }},
    {"service-level", "GPUPOOL_RDMA_SERVICE_LEVEL", "a number from 0 to 15",
     "service level of packets, InfiniBand [0]",
     [](std::string_view text, RdmaOptions& out) { return read_number(text, 0, 15, out.service_level); }},
    {"partition-key", "GPUPOOL_RDMA_PARTITION_KEY", "a number from 0x1 to 0xffff",
     "partition key, for example 0x8001, InfiniBand [the port's first]",
     [](std::string_view text, RdmaOptions& out) { return read_number(text, 1, 0xffff, out.partition_key); }},
    {"setup", "GPUPOOL_RDMA_SETUP", "auto, manager or addresses",
     "how queue pairs are connected: manager (librdmacm) or addresses [auto: the manager on InfiniBand]",
     read_setup},
    {"timeout", "GPUPOOL_RDMA_TIMEOUT", "an exponent from 1 to 22",
     "exponent T: an unacknowledged packet is resent after 4.096 us times 2^T, six times [16: 0.27 s]",
     [](std::string_view text, RdmaOptions& out) { return read_number(text, 1, 22, out.timeout_exponent); }},
};

}  // namespace

std::span<const RdmaSetting> rdma_settings() {
  return kSettings;
}

const RdmaSetting* find_rdma_setting(std::string_view name) {
  const auto found = std::find_if(std::begin(kSettings), std::end(kSettings),
                                  [&](const auto& setting) { return setting.name == name; });
  return found != std::end(kSettings) ? found : nullptr;
}

RdmaOptions rdma_options_from_environment(const std::function<void(const std::string&)>& complain) {
  RdmaOptions options;
  for (const RdmaSetting& setting : kSettings) {
    const char* const text = std::getenv(setting.variable);
    if (!text || !*text || setting.read(text, options)) continue;
    complain(std::string(setting.variable) + "=" + text + ": ignored, must be " + setting.values);
  }
  return options;
}

bool has_rdma_device() {
  DIR* const devices = ::opendir("/sys/class/infiniband");
  if (!devices) return false;
  bool found = false;
  while (const dirent* entry = ::readdir(devices)) found = found || entry->d_name[0] != '.';
  ::closedir(devices);
  return found;
}

}  // namespace gpupool::transport
