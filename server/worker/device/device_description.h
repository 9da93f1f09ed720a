// The description of the devices that the client receives at the start of its session (HelloReply), and the
// session's range of device addresses. Main thread of the worker, before the session runs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/control/hello.pb.h"
#include "server/quota/ledger.h"
#include "server/quota/partitions.h"

namespace gpupool::worker {

class DeviceLibrary;

// True for device attributes that poold gets for GPU monitoring.
bool is_monitored(const DeviceLibrary& library, int attribute);

// Describes all devices; the result stays valid while the worker waits for its session.
Result<std::vector<control::Device>> describe_devices(const DeviceLibrary& library);

// describe_partitions() adds the counts of multiprocessors and groups for poold. limit_multiprocessors()
// replaces the number of multiprocessors that the client sees by the number that its session has.
void describe_partitions(const DeviceLibrary& library, std::vector<control::Device>& devices);
void limit_multiprocessors(const std::vector<quota::Groups>& groups, std::vector<control::Device>& devices);

// Limits the reported memory sizes to the tenant's quota.
void limit_memory(const quota::Ledger& ledger, std::vector<control::Device>& devices);

// Returns a control::Devices for poold, with only the attributes that monitoring shows.
std::string summarize_devices(const DeviceLibrary& library, const std::vector<control::Device>& devices);

struct AddressRange {
  uint64_t base = 0;
  uint64_t size = 0;
};
// Reserves 1 to 16 TiB, depending on the devices' memory, or as much of it as the device library grants.
// Returns size 0 if addresses cannot be reserved.
AddressRange reserve_addresses(const DeviceLibrary& library, const std::vector<control::Device>& devices);

}  // namespace gpupool::worker
