// ResourceSlices of a pool: what kube-scheduler may allocate. Pure; any thread.
//
// All GPUs of one model are one device that belongs to no node and is allocated in shares (consumable
// capacity): kube-scheduler counts, the pool's scheduler places (docs/adr/0045-kubernetes.md). Clusters
// without consumable capacity get each GPU as a device of its own.
#pragma once
#include <cstdint>
#include <string>

#include "client/kubernetes/api_server.h"
#include "protocol/control/pool_admin.pb.h"

namespace gpupool::kubernetes {

// Returns the devices (resource.k8s.io/v1, Device) of the nodes that take leases, ordered by name.
Json devices_of(const pool::ListNodesReply& nodes, bool shared);

// Returns the slices with these devices, at most 128 in each. `generation` counts the changes.
Json slices_of(const Json& devices, const std::string& driver, const std::string& pool, int64_t generation);

// Returns a slice with one shared device, which shows whether the API server keeps that it is shared. It is
// not to be stored.
Json probe_slice(const std::string& driver, const std::string& pool);
// Returns true if all devices are shared.
bool are_shared(const Json& devices);

// Returns the name of the slice with this number.
std::string slice_name(const std::string& driver, const std::string& pool, size_t number);

// Returns the devices of all slices in one list.
Json devices_in(const Json& slices);

}  // namespace gpupool::kubernetes
