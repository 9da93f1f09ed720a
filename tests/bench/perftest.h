// What this machine's RDMA devices are, and what perftest (ib_write_bw and its like) makes of two of them: the baselines of
// the rdma suite. Failures are exceptions.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace gpupool::bench {

struct RdmaDevice {
  std::string name;
  std::string address;  // IPv4, as its GID says
  int gid_index = -1;   // -1: InfiniBand
};

// Those with a port that is up, in the order of their names.
std::vector<RdmaDevice> find_rdma_devices();
// One line about a device for a person, from ibv_devinfo and what else the system knows.
std::string hardware_of(const RdmaDevice& device);

bool is_installed(const std::string& program);

// Two devices, or twice the same: perftest's client runs on the first, its server on the second.
struct RdmaPair {
  RdmaDevice client, server;
};
// ib_write_bw, ib_read_bw: MB/s of messages of so many bytes.
double perftest_MBps(const std::string& program, const RdmaPair& pair, size_t bytes, int messages);
// ib_write_lat, 8 bytes: microseconds one way, the median.
double perftest_latency_us(const RdmaPair& pair, int messages);

// Bytes that a process has registered with RDMA devices.
size_t registered_bytes(int pid);

}  // namespace gpupool::bench
