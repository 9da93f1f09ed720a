// Namespaces that a worker of root makes for itself before it gives up its rights, so that it does not see what its rights and the filter of system calls
// keep it from anyhow. Used by the worker, and by poold, which tries in a child what the host allows. A process with one thread.
#pragma once

namespace gpupool::worker::sandbox {

struct Namespaces {
  bool processes = false;  // a /proc that shows no processes but those that this one may trace
  bool ipc = false;        // System V and POSIX message queues, shared memory and semaphores of its own
  bool network = false;    // a network without devices, ports and abstract Unix sockets; open sockets stay as they are
};

// Makes those that are wanted and returns which it could make: that takes CAP_SYS_ADMIN, and a kernel that has them.
Namespaces separate(const Namespaces& wanted);

}  // namespace gpupool::worker::sandbox
