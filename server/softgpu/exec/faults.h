// Signals raised by kernels. Internal to exec/.
//
// Handlers of SIGSEGV, SIGBUS, SIGFPE and SIGILL are installed once per process. A signal belongs to a kernel when its
// stack pointer lies in softgpu's reserved range, where no other code runs; the grid then ends with a fault. Every other
// signal is passed to the handler that was there before, or to the default action, as if ours did not exist. A program may
// install handlers after us, also ones that fall back on "the previous handler" (ours): keep_fault_handlers() puts ours in
// front again and remembers the newcomer.
#pragma once
#include <cstdint>

#include "server/softgpu/exec/fiber.h"

namespace gpupool::softgpu {

bool install_fault_handlers();
void keep_fault_handlers();  // before a launch; one system call when nothing changed

// A signal stack for the calling thread, for as long as the object lives. Pool threads have one: a fiber whose stack
// overflowed has no room for the handler.
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
