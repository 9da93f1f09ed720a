// Exports a function under a name whose definition C++ cannot write, because its type is deduced from the
// declaration in cuda.h. The symbol is a jump through a typed constant function pointer. Only for sources of
// a library made with gpupool_cuda_driver(), as exports.h.
#pragma once
#include "protocol/driver/exports.h"

#if defined(__x86_64__)
#define GPUPOOL_JUMP(slot) "endbr64\n jmp *" slot "(%rip)\n"
#elif defined(__aarch64__)
#define GPUPOOL_JUMP(slot) "hint 34\n adrp x16, " slot "\n ldr x16, [x16, :lo12:" slot "]\n br x16\n"
#else
#error "no jump for this processor"
#endif

// GPUPOOL_EXPORT_FUNCTION(name, function): `function` may contain commas.
#define GPUPOOL_EXPORT_FUNCTION(name, ...)                                                           \
  extern "C" {                                                                                       \
  extern decltype(&__VA_ARGS__) gpupool_slot_##name;                                                 \
  __attribute__((visibility("hidden"), used)) constinit decltype(&__VA_ARGS__) gpupool_slot_##name = \
      &__VA_ARGS__;                                                                                  \
  }                                                                                                  \
  asm(".pushsection .text\n .globl " #name "\n .type " #name ", %function\n .p2align 4\n" #name      \
      ":\n " GPUPOOL_JUMP("gpupool_slot_" #name) ".size " #name ", . - " #name "\n .popsection\n");
