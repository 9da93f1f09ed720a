// Finds this machine's RDMA devices, and runs perftest (ib_write_bw etc.) between two of them: the baselines
// of the rdma suite. Failures are exceptions.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace gpupool::bench {

struct RdmaDevice {
  std::string name;
  std::string address;  // IPv4, from its GID
  int gid_index = -1;   // -1: InfiniBand
};

// Returns the devices whose port is active, sorted by name.
std::vector<RdmaDevice> find_rdma_devices();
// Returns a one-line description of a device, from ibv_devinfo and sysfs.
std::string hardware_of(const RdmaDevice& device);

bool is_installed(const std::string& program);

// The devices of perftest's client and server; may be the same.
struct RdmaPair {
  RdmaDevice client, server;
};
// Runs ib_write_bw or ib_read_bw with messages of `bytes`; returns MB/s.
double perftest_MBps(const std::string& program, const RdmaPair& pair, size_t bytes, int messages);
// Runs ib_write_lat with 8 bytes; returns the median one-way latency in microseconds.
double perftest_latency_us(const RdmaPair& pair, int messages);

// Returns the bytes that a process has registered with RDMA devices; 0 if unknown.
size_t registered_bytes(int pid);

}  // namespace gpupool::bench
