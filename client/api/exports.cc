// Defines the rows of protocol/calls/calls.def as exported symbols of libcuda.so.1.
//
// C++ cannot define a function from a deduced type, so each symbol is a jump through a typed constant
// function pointer. Hand-written calls define their symbols in client/api/; the remaining symbols return
// CUDA_ERROR_NOT_SUPPORTED (protocol/driver/exports.S).
#include "client/session/call.h"

#if defined(__x86_64__)
#define JUMP(slot) "endbr64\n jmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(slot) "hint 34\n adrp x16, " slot "\n ldr x16, [x16, :lo12:" slot "]\n br x16\n"
#else
#error "no jump for this processor"
#endif

#define EXPORT(name, function)                                                                               \
  extern "C" {                                                                                               \
  extern decltype(&function) gpupool_slot_##name;                                                            \
  __attribute__((visibility("hidden"), used)) constinit decltype(&function) gpupool_slot_##name = &function; \
  }                                                                                                          \
  asm(".pushsection .text\n .globl " #name "\n .type " #name ", %function\n .p2align 4\n" #name              \
      ":\n " JUMP("gpupool_slot_" #name) ".size " #name ", . - " #name "\n .popsection\n");

namespace rows = gpupool::client::rows;

#define CUDA_CALL(id, name, mode, ...) EXPORT(name, rows::name::forward)
#define CUDA_CALL_CUSTOM_EXPORT(id, name, mode, ...)
#define CUDA_BY_HAND(name)
#include "protocol/calls/calls.def"
