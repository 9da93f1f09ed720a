// Handles the program's accesses to pages that are not present (Mirrors).
//
// start() installs a SIGSEGV handler with the first mirrored memory. The handler only passes the address to a
// client thread and waits: that thread may lock, allocate and talk to a server, while the handler may not,
// and its stack may be small. Other faults go to the handler that was installed before, or to one that the
// program has installed since (reinstall()). All functions are thread-safe.
#pragma once
#include <sys/types.h>

#include <cstdint>

namespace gpupool::client::page_faults {

enum class Access { read, write, unknown };
enum class Answer : uint32_t {
  none,
  served,       // the access may be retried
  not_ours,     // the address is not mirrored: passed to the previous handler
  unavailable,  // the page cannot be fetched: raises SIGBUS, as when a device with managed memory is lost
};
// `in_host_function`: the access comes from a host function, for which its stream waits.
using Serve = Answer (*)(uint64_t address, Access access, bool in_host_function);

// Starts the threads and installs the handler; once it has succeeded, later calls do nothing. False: no
// thread could be created.
bool start(Serve serve);
// Faults in [begin, end) are passed to Serve from now on.
void watch(uint64_t begin, uint64_t end);
// Installs the handler again, if the program has replaced it.
void reinstall();
// Called by the two threads that run host functions and late copies: their faults are served on a separate
// thread, because they must not wait behind other faults.
void mark_host_function_thread();

}  // namespace gpupool::client::page_faults
