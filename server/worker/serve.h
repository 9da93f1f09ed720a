// Answers a client's hello and runs its session: the part of the worker that speaks to the client before
// run_session() does. Called by main(), once.
#pragma once
#include <functional>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "server/handover/handover.h"
#include "server/worker/device/device_description.h"
#include "server/worker/device/device_library.h"
#include "server/worker/session/control.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

// The device, limits and connections to poold that the worker has ready before its client arrives.
struct Served {
  DeviceLibrary& library;
  std::vector<control::Device> devices;
  AddressRange range;  // reserved for the session's device memory
  transport::RdmaOptions rdma;
  bool tls = false;  // OpenSSL is loaded
  Control& control;
  Usage usage;
  std::vector<quota::Groups> groups;
  std::function<MemoryUse(int device)> memory_use;
  IdleContext idle_context;
};

// `message`: poold's message of kind `session`, with the client's socket. Returns the process's exit status.
int serve(Served served, const server::ControlMessage& message);

}  // namespace gpupool::worker
