// Which device, port and GID carry a connection.
#pragma once
#include <sys/socket.h>

#include <string>

#include "protocol/transport/transport.h"
#include "rdma/verbs.h"

namespace gpupool::transport::rdma {

// An open device and the port of it that was chosen. Closed by its owner (Domain).
struct Device {
  ibv_context* context = nullptr;
  std::string name;
  uint8_t port = 0;
  uint8_t gid_index = 0;
  ibv_gid gid{};
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  bool ethernet = false;  // RoCE: peers are named by GIDs
  uint16_t partition_index = 0;
  ibv_device_attr limits{};

  std::string text() const;  // "rxe0, port 1, GID 1"
};

// The best there is for a connection whose own address is `local`. The error says what was missing.
Result<Device> open_device(const Verbs& verbs, const RdmaOptions& options, const sockaddr_storage& local);

}  // namespace gpupool::transport::rdma
