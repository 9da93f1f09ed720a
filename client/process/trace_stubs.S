// For each symbol of symbols.def, in its order, a stub that counts the call and jumps to the symbol, with all
// parameters unchanged. trace.h returns the stubs from cuGetProcAddress instead of the symbols while calls are counted.
#if defined(__x86_64__)
#if defined(__has_include)
#if __has_include(<cet.h>)
#include <cet.h>
#endif
#endif
        .text
        .globl gpupool_counting_stubs
        .hidden gpupool_counting_stubs
        .p2align 5
gpupool_counting_stubs:
        .set count_offset, 0
#define CUDA_SYMBOL(name, version) \
        .p2align 5; endbr64; lock incq gpupool_counting_counts+count_offset(%rip); jmp name; \
        .set count_offset, count_offset + 8;
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL
#else
        .text
        .globl gpupool_counting_stubs
        .hidden gpupool_counting_stubs
gpupool_counting_stubs:
        .set count_offset, 0
#define CUDA_SYMBOL(name, version) .set count_offset, count_offset + 8;
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL
#endif

        .bss
        .globl gpupool_counting_counts
        .hidden gpupool_counting_counts
        .p2align 6
gpupool_counting_counts:
        .skip count_offset

        .section .note.GNU-stack, "", %progbits
