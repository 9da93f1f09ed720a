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
  uint8_t gid_index = 0;
  ibv_gid gid{};
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  bool ethernet = false;  // RoCE: peers are addressed by GIDs
  uint16_t partition_index = 0;
  ibv_device_attr limits{};

  std::string text() const;  // "rxe0, port 1, GID 1"
};

// Opens the best device, port and GID for a connection whose own address is `local`. ErrorCode::unavailable:
// nothing fits; the message says why.
Result<Device> open_device(const Verbs& verbs, const RdmaOptions& options, const sockaddr_storage& local);
// Fills in the current addresses of the port of a device that is open. ErrorCode::unavailable: it has none.
Result<void> find_port_again(const Verbs& verbs, const RdmaOptions& options, const sockaddr_storage& local,
                             Device& device);

}  // namespace gpupool::transport::rdma
