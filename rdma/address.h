// The address of a queue pair, which the two sides of a connection exchange. Sent as it lies in memory.
// Values; any thread.
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

namespace gpupool::transport::rdma {

struct Address {
  uint32_t queue_pair = 0;       // its number; 0: there is no queue pair
  uint32_t packet_sequence = 0;  // of its first packet, 24 bits
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;   // for InfiniBand within one subnet
  uint8_t mtu = 0;    // ibv_mtu of its port
  uint8_t reads = 0;  // RDMA reads of its memory that it answers at a time
  uint32_t reserved = 0;
};
static_assert(sizeof(Address) == 32 && std::is_trivially_copyable_v<Address>);

}  // namespace gpupool::transport::rdma
