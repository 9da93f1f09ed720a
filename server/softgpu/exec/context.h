// Switching between stacks: the few instructions below everything else in exec/ (context_<architecture>.S).
#pragma once
#include <cstdint>

extern "C" {
// Saves the callee-saved registers on the current stack, leaves the stack pointer in *save, and goes on at `to`, which
// was saved before or made by make_context. Returns when somebody switches back.
void softgpu_context_switch(void** save, void* to);
// Goes on at `to` and forgets the current stack.
[[noreturn]] void softgpu_context_restore(void* to);
// Copies bytes from memory that may not be accessible. Returns how many bytes were not copied: 0 when all went well, not
// less than 1 when a page is missing (the SIGSEGV handler sends it to its exit).
uint64_t softgpu_copy_checked(void* to, const void* from, uint64_t bytes);
// The instructions of softgpu_copy_checked that may fault, and where to go on when one does.
extern const char softgpu_copy_begin[], softgpu_copy_end[], softgpu_copy_failed[];
}

// For functions that leave a stack for good or run between two stacks: the sanitizers must neither record their entry nor
// look at the stack when they do not return.
#if defined(GPUPOOL_ASAN) || defined(GPUPOOL_TSAN)
#define SOFTGPU_LEAVES_STACK __attribute__((no_sanitize("address", "thread", "undefined")))
#else
#define SOFTGPU_LEAVES_STACK
#endif

namespace gpupool::softgpu {

// A context that starts `entry` at the top of an empty stack. `entry` must not return.
inline void* make_context(uint64_t stack_top, void (*entry)()) {
#if defined(__x86_64__)
  // Six registers, the entry, and a null return address, which also aligns the stack as a call would.
  auto* frame = reinterpret_cast<uint64_t*>(stack_top & ~uint64_t{15}) - 8;
  for (int i = 0; i < 6; ++i) frame[i] = 0;
  frame[6] = reinterpret_cast<uint64_t>(entry);
  frame[7] = 0;
  return frame;
#elif defined(__aarch64__)
  // x19..x30 (x30: where to go), d8..d15.
  auto* frame = reinterpret_cast<uint64_t*>(stack_top & ~uint64_t{15}) - 20;
  for (int i = 0; i < 20; ++i) frame[i] = 0;
  frame[11] = reinterpret_cast<uint64_t>(entry);
  return frame;
#else
#error "softgpu's context switch knows x86-64 and AArch64"
#endif
}

}  // namespace gpupool::softgpu
