// Connects this process to a FakeWorker, as cuInit does, for tests that call the driver API or need the
// process's sessions. A process connects once: all test cases of a program share the worker. Main thread.
#pragma once
#include <cstdlib>
#include <stdexcept>

#include "client/session/call.h"
#include "tests/support/fake_worker.h"

namespace gpupool::client::test {

// Returns the worker, without handlers and recorded commands.
inline testing::FakeWorker& connected_worker() {
  static testing::FakeWorker* const worker = [] {
    auto* const made = new testing::FakeWorker;  // sessions are never closed
    made->offer.server_id = 77;
    ::setenv("GPUPOOL", made->url().c_str(), 1);
    ::setenv("GPUPOOL_TRANSPORT", "tcp", 1);
    ::setenv("GPUPOOL_SHM", "0", 1);
    if (initialise() != CUDA_SUCCESS) throw std::runtime_error("cannot connect to the fake worker");
    return made;
  }();
  worker->forget();
  return *worker;
}

// Makes the device's primary context current in the calling thread.
inline Context& current_primary() {
  CUcontext handle = nullptr;
  if (cuDevicePrimaryCtxRetain(&handle, 0) != CUDA_SUCCESS || cuCtxSetCurrent(handle) != CUDA_SUCCESS)
    throw std::runtime_error("no primary context");
  return *devices()[0]->primary;
}

}  // namespace gpupool::client::test
