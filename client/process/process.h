// The process-wide state: sessions, devices, and the policy for start, fork and exit.
//
// Connects at cuInit. Never destroyed, because programs call the driver from exit handlers. In a forked child
// all calls return CUDA_ERROR_NOT_INITIALIZED, as with CUDA. Thread-safe; constant once ready().
#pragma once
#include <memory>
#include <vector>

#include "client/lease/file.h"
#include "client/lease/watch.h"
#include "client/session/session.h"

namespace gpupool::client {

// cuInit: connects once; later calls return the first result. Logs the reason of a failure once.
CUresult initialise();

// CUDA_SUCCESS once connected; otherwise the code for driver calls to return.
CUresult ready();

// All servers, including those without visible devices, with their current tokens (the tokens of a lease are
// renewed).
Result<std::vector<LeasedServer>> servers_now();
// As servers_now(), but waits for at most 2 s until `holds` is true of the servers: a server may tell of a
// move of the lease before pool-lease has written it to the lease file.
Result<std::vector<LeasedServer>> await_servers(const LeaseCondition& holds);

// One session per server with a visible device, in the order of GPUPOOL.
const std::vector<std::unique_ptr<Session>>& sessions();

// The visible devices of all servers, by the program's numbers.
const Devices& devices();
Device* find_device(int ordinal);  // null: no device has this number

// Returns the session that an address belongs to; null: it is no device address. Looks in `first` before the
// others: if two servers have placed module variables at the same address, the caller's own server is meant.
Session* session_of(uint64_t address, Session* first);

}  // namespace gpupool::client
