// Stack switching, the lowest layer of exec/. Implemented in assembly (context_<architecture>.S); used by
// fiber.cc, block_run.cc and the signal handler.
#pragma once
#include <cstdint>

extern "C" {
// Saves the callee-saved registers on the current stack, stores the stack pointer in *save, and continues at
// `to`, a context saved earlier or made by make_context. Returns when another context switches back.
void softgpu_context_switch(void** save, void* to);
// Continues at `to` and discards the current context.
[[noreturn]] void softgpu_context_restore(void* to);
// Copies from memory that may be inaccessible. Returns the number of bytes not copied: 0 on success, at least
// 1 if a page could not be read (the SIGSEGV handler continues at softgpu_copy_failed).
uint64_t softgpu_copy_checked(void* to, const void* from, uint64_t bytes);
// The instructions of softgpu_copy_checked that may fault, and the address to continue at after a fault.
extern const char softgpu_copy_begin[], softgpu_copy_end[], softgpu_copy_failed[];
}

// For functions that leave a stack for good or run between two stacks: sanitizers must neither record the
// entry of such a function nor check the stack when it does not return.
#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
#define SOFTGPU_LEAVES_STACK __attribute__((no_sanitize("address", "thread", "undefined")))
#else
#define SOFTGPU_LEAVES_STACK
#endif

namespace gpupool::softgpu {

// Creates a context that starts `entry` on an empty stack. `entry` must not return.
inline void* make_context(uint64_t stack_top, void (*entry)()) {
#if defined(__x86_64__)
  // Six registers, the entry, and a null return address, which also gives the stack the alignment of a call.
  auto* frame = reinterpret_cast<uint64_t*>(stack_top & ~uint64_t{15}) - 8;
  for (int i = 0; i < 6; ++i) frame[i] = 0;
  frame[6] = reinterpret_cast<uint64_t>(entry);
  frame[7] = 0;
  return frame;
#elif defined(__aarch64__)
  // x19 to x30 (x30: address to continue at), d8 to d15.
  auto* frame = reinterpret_cast<uint64_t*>(stack_top & ~uint64_t{15}) - 20;
  for (int i = 0; i < 20; ++i) frame[i] = 0;
  frame[11] = reinterpret_cast<uint64_t>(entry);
  return frame;
#else
#error "softgpu's context switch supports only x86-64 and AArch64"
#endif
}

}  // namespace gpupool::softgpu
