// Signals raised by kernels. Internal to exec/.
//
// Handlers of SIGSEGV, SIGBUS, SIGFPE and SIGILL are installed once per process. A signal belongs to a kernel
// if its stack pointer lies in softgpu's reserved range, where no other code runs; the grid then ends with a
// fault. All other signals are passed to the previous handler or the default action. A program may later
// install handlers of its own, some of which call "the previous handler" (ours): reinstall_fault_handlers()
// puts ours in front again and remembers the newer one.
#pragma once
#include <cstdint>

#include "server/softgpu/exec/fiber.h"

namespace gpupool::softgpu {

bool install_fault_handlers();
void reinstall_fault_handlers();  // call before a launch; costs one system call if nothing changed

// Provides an alternate signal stack for the calling thread for the lifetime of the object. Pool threads need
// one: a fiber whose stack overflowed has no room for the handler.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  uint64_t address_ = 0;
};

}  // namespace gpupool::softgpu
