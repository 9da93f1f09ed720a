// What a client learns of the devices when its session starts (HelloReply), and the session's range of device
// addresses. Used by the worker's main thread only, before the session runs.
#pragma once
#include <cstdint>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "protocol/wire/result.h"
#include "server/quota/ledger.h"
#include "server/quota/partitions.h"

namespace gpupool::worker {

class DeviceLibrary;

// An attribute that poold is told of, because those who watch a GPU are shown it.
bool is_monitored(const DeviceLibrary& library, int attribute);

// Everything that does not change while the worker waits for its session.
Result<std::vector<control::Device>> describe_devices(const DeviceLibrary& library);

// What poold is told of the devices' multiprocessors, and the client of those that it has.
void describe_partitions(const DeviceLibrary& library, std::vector<control::Device>& devices);
void limit_multiprocessors(const std::vector<quota::Groups>& groups, std::vector<control::Device>& devices);

// No more memory than the tenant may have.
void limit_memory(const quota::Ledger& ledger, std::vector<control::Device>& devices);

struct AddressRange {
  uint64_t base = 0;
  uint64_t size = 0;
};
// From 1 to 16 TiB, by the devices' memory, or as much of that as the device library gives; size 0 where addresses cannot be reserved.
AddressRange reserve_addresses(const DeviceLibrary& library, const std::vector<control::Device>& devices);

}  // namespace gpupool::worker
