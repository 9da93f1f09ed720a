// Chooses the device, port and GID that carry a connection. Used by Domain. No state, any thread.
#pragma once
#include <sys/socket.h>

#include <string>

#include "protocol/transport/transport.h"
#include "rdma/verbs.h"

namespace gpupool::transport::rdma {

// An open device and the chosen port of it. The owner (Domain) closes it.
struct Device {
  ibv_context* context = nullptr;
  std::string name;
  uint8_t port = 0;
  ibv_device_attr limits{};
};

// How peers address the port, and what it was set to. Unlike the device, these can change while it is open.
struct PortAddress {
  uint8_t gid_index = 0;
  ibv_gid gid{};
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  bool ethernet = false;  // RoCE: peers are addressed by GIDs
  uint16_t partition_index = 0;
};

struct OpenedDevice {
  Device device;
  PortAddress address;
};

// Opens the best device, port and GID for a connection whose own address is `local`. ErrorCode::unavailable:
// nothing fits; the message says why.
Result<OpenedDevice> open_device(const Verbs& verbs, const RdmaOptions& options,
                                 const sockaddr_storage& local);
// Finds the current address of the device's port. ErrorCode::unavailable: it has none.
Result<PortAddress> find_address(const Verbs& verbs, const RdmaOptions& options,
                                 const sockaddr_storage& local, const Device& device);

}  // namespace gpupool::transport::rdma
