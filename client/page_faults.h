// The program's accesses to pages that are not there, told to whoever can bring them.
//
// A handler for SIGSEGV, installed with the first such memory. It does nothing itself but hand the address to a thread of
// the client's and wait: that thread may lock, allocate and talk to a server, the handler may not, and its stack may be
// small. What is not ours goes to the handler that was there before, or to one that the program has installed since (keep()).
#pragma once
#include <sys/types.h>

#include <cstdint>

namespace gpupool::client::page_faults {

enum class Access { read, write, unknown };
enum class Answer : uint32_t {
  none,
  served,    // the access may be tried again
  not_ours,
  lost,      // the page cannot be brought: the program gets SIGBUS, as when a device that has managed memory is lost
};
// `in_host_function`: the access is a host function's, for which its stream waits.
using Serve = Answer (*)(uint64_t address, Access access, bool in_host_function);

// False: no thread can be had. Later calls do nothing.
bool start(Serve serve);
// Faults in [begin, end) are asked about from now on.
void watch(uint64_t begin, uint64_t end);
// If the program has put a handler in the place of ours, ours is put before it.
void keep();
// Called by each of the two threads that run host functions and late copies: what they wait for must not wait for other faults.
void this_thread_runs_host_functions();

}  // namespace gpupool::client::page_faults
