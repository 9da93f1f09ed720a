#include "rdma/device.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

namespace gpupool::transport::rdma {
namespace {

// Converts an address to a GID: IPv4 is mapped into IPv6.
std::optional<ibv_gid> gid_of(const sockaddr_storage& address) {
  ibv_gid gid{};
  if (address.ss_family == AF_INET) {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  } else if (address.ss_family == AF_INET6) {
    std::memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
  } else {
    return std::nullopt;
  }
  return gid;
}

bool is_mapped_ipv4(const ibv_gid& gid) {
  return std::all_of(gid.raw, gid.raw + 10, [](uint8_t byte) { return byte == 0; }) && gid.raw[10] == 0xff &&
         gid.raw[11] == 0xff;
}

bool is_roce_v2(const std::string& device, unsigned port, int index) {
  std::ifstream type("/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) +
                     "/gid_attrs/types/" + std::to_string(index));
  std::string text;
  std::getline(type, text);
  return text == "RoCE v2";
}

// Rates a GID; 0: it cannot be used.
int fitness(const Device& device, bool ethernet, const ibv_gid& gid, int index,
            const std::optional<ibv_gid>& local) {
  if (std::all_of(std::begin(gid.raw), std::end(gid.raw), [](uint8_t byte) { return byte == 0; })) return 0;
  if (!ethernet) return index == 0 ? 2 : 1;
  const bool v2 = is_roce_v2(device.name, device.port, index);
  if (local && std::memcmp(gid.raw, local->raw, sizeof gid.raw) == 0) return v2 ? 6 : 5;
  if (v2) return is_mapped_ipv4(gid) ? 4 : 3;
  return 1;
}

std::optional<ibv_mtu> mtu_of(unsigned bytes) {
  switch (bytes) {
    case 256: return IBV_MTU_256;
    case 512: return IBV_MTU_512;
    case 1024: return IBV_MTU_1024;
    case 2048: return IBV_MTU_2048;
    case 4096: return IBV_MTU_4096;
    default: return std::nullopt;
  }
}

bool find_partition(const Verbs& verbs, const RdmaOptions& options, int table, const Device& device,
                    PortAddress& address) {
  if (options.partition_key == 0) return true;
  for (int index = 0; index < table; ++index) {
    uint16_t key = 0;
    if (verbs.query_pkey(device.context, device.port, index, &key) != 0) continue;
    // The top bit distinguishes full from limited membership.
    if ((ntohs(key) & 0x7fff) != (options.partition_key & 0x7fff)) continue;
    address.partition_index = static_cast<uint16_t>(index);
    return true;
  }
  return false;
}

// Fills in the address with the port's best GID and returns its rating, or 0 and `why` if the port cannot be
// used.
int examine_port(const Verbs& verbs, const RdmaOptions& options, const std::optional<ibv_gid>& local,
                 const Device& device, PortAddress& address, std::string& why) {
  const std::string name = device.name + " port " + std::to_string(device.port);
  ibv_port_attr port{};
  // The symbol's parameter is the older, shorter struct, which is a prefix of ibv_port_attr.
  if (verbs.query_port(device.context, device.port, reinterpret_cast<_compat_ibv_port_attr*>(&port)) != 0)
    return 0;
  if (port.state != IBV_PORT_ACTIVE) {
    why = name + " is down";
    return 0;
  }
  address.lid = port.lid;
  address.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  address.mtu = port.active_mtu;
  if (options.mtu != 0) {
    const auto mtu = mtu_of(options.mtu);
    if (!mtu || *mtu > port.active_mtu) {
      why = name + " does not support an MTU of " + std::to_string(options.mtu);
      return 0;
    }
    address.mtu = *mtu;
  }
  if (!find_partition(verbs, options, port.pkey_tbl_len, device, address)) {
    why = name + " does not have the requested partition key";
    return 0;
  }
  int best = 0;
  for (int index = 0; index < port.gid_tbl_len && index < 256; ++index) {
    if (options.gid_index >= 0 && index != options.gid_index) continue;
    ibv_gid gid{};
    if (verbs.query_gid(device.context, device.port, index, &gid) != 0) continue;
    const int fits = fitness(device, address.ethernet, gid, index, local);
    if (fits <= best) continue;
    best = fits;
    address.gid = gid;
    address.gid_index = static_cast<uint8_t>(index);
  }
  if (best == 0)
    why =
        name + (options.gid_index >= 0 ? " has no GID " + std::to_string(options.gid_index) : " has no GID");
  return best;
}

}  // namespace

Result<OpenedDevice> open_device(const Verbs& verbs, const RdmaOptions& options,
                                 const sockaddr_storage& local) {
  int count = 0;
  ibv_device** const list = verbs.get_device_list(&count);
  if (!list || count == 0) {
    if (list) verbs.free_device_list(list);
    return Error{ErrorCode::unavailable, "there is no RDMA device"};
  }
  std::string why =
      options.device.empty() ? "no usable RDMA device" : "there is no RDMA device '" + options.device + "'";
  const auto gid = gid_of(local);
  OpenedDevice best;
  int best_fitness = 0;
  for (int i = 0; i < count; ++i) {
    Device device;
    device.name = verbs.get_device_name(list[i]);
    if (!options.device.empty() && options.device != device.name) continue;
    device.context = verbs.open_device(list[i]);
    if (!device.context || verbs.query_device(device.context, &device.limits) != 0) {
      if (device.context) verbs.close_device(device.context);
      why = "the RDMA device " + device.name +
            " cannot be opened (in a container, check that /dev/infiniband exists)";
      continue;
    }
    bool taken = false;
    for (unsigned port = 1; port <= device.limits.phys_port_cnt; ++port) {
      if (options.port != 0 && options.port != port) continue;
      device.port = static_cast<uint8_t>(port);
      PortAddress address;
      const int fits = examine_port(verbs, options, gid, device, address, why);
      if (fits <= best_fitness) continue;
      ibv_context* const other = best.device.context;
      if (other && other != device.context) verbs.close_device(other);
      best = {device, address};
      best_fitness = fits;
      taken = true;
    }
    if (!taken) verbs.close_device(device.context);
  }
  verbs.free_device_list(list);
  if (best_fitness == 0) return Error{ErrorCode::unavailable, why};
  return best;
}

Result<PortAddress> find_address(const Verbs& verbs, const RdmaOptions& options,
                                 const sockaddr_storage& local, const Device& device) {
  std::string why = "the port of " + device.name + " does not answer";
  PortAddress address;
  if (examine_port(verbs, options, gid_of(local), device, address, why) == 0)
    return Error{ErrorCode::unavailable, why};
  return address;
}

}  // namespace gpupool::transport::rdma
