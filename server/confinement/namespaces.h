// Namespaces that a worker started by root creates for itself before it gives up root's privileges. They hide
// from it what its permissions and the system-call filter deny anyway. Used by the worker, and by poold,
// which probes in a child process what the host supports. The calling process must have only one thread.
#pragma once

namespace gpupool::worker::sandbox {

struct Namespaces {
  bool processes = false;  // a /proc without processes that this process may not trace
  bool ipc = false;        // own System V IPC objects and POSIX message queues
  // A network without devices, ports and abstract Unix sockets; open sockets keep working.
  bool network = false;
};

// Creates the wanted namespaces and returns those that it could create; needs CAP_SYS_ADMIN and kernel
// support.
Namespaces separate(const Namespaces& wanted);

}  // namespace gpupool::worker::sandbox
