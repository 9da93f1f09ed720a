// What the process has one of: its servers and their devices, and the policy for start, fork and exit.
//
// The only global of the client. It connects at cuInit, is never destroyed (programs call the driver from exit handlers),
// and says in a forked child what CUDA says: not initialised. Any thread; what is told here is constant once ready().
#pragma once
#include <memory>
#include <vector>

#include "client/lease/file.h"
#include "client/session.h"

namespace gpupool::client {

// cuInit: connects once; later calls repeat the first answer. The reason of a failure goes to stderr once.
CUresult initialise();

// CUDA_SUCCESS, or the code that a driver call returns now.
CUresult ready();

// All servers, of devices that are not visible too, with their tokens as of now: a lease's are renewed.
Result<std::vector<LeasedServer>> servers_now();

// One for each server of which a device is visible, in the order of GPUPOOL.
const std::vector<std::unique_ptr<Session>>& sessions();

// As the program numbers them, of all servers.
const Devices& devices();
Device* find_device(int ordinal);  // null: there is none

// The session that an address belongs to, looking in `first` before the others: where two servers have placed variables of
// modules at the same address, the caller's own is meant. Null: no device address.
Session* session_of(uint64_t address, Session* first);

}  // namespace gpupool::client
