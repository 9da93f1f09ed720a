// Exports every driver symbol from the library that this file is linked into.
// Each name is a weak stub of one jump, which a strong definition elsewhere in the same library replaces. All other
// calls return CUDA_ERROR_NOT_SUPPORTED through gpupool_cuda_unsupported. The table at the end has the address of each
// final symbol, strong or stub, as a 32-bit distance from the table. The linker rejects this distance for a symbol that
// another library could replace, so linking without -Bsymbolic fails instead of producing a library whose calls
// LD_PRELOAD can redirect. See exports.h.

#if defined(__x86_64__)
#if defined(__has_include)
#if __has_include(<cet.h>)
#include <cet.h>  // marks the object as compatible with indirect branch tracking if the compiler enables it
#endif
#endif
#define STUB_BODY endbr64; movl $stub_index, %edi; jmp gpupool_cuda_unsupported
#elif defined(__aarch64__)
#define STUB_BODY hint 34; mov w0, stub_index; b gpupool_cuda_unsupported  // hint 34: bti c
#else
#error "no stub for this processor"
#endif

        .text
        .set stub_index, 0
#define CUDA_SYMBOL(name, version) \
        .weak name; .type name, %function; .p2align 4; name: STUB_BODY; .size name, . - name; \
        .set stub_index, stub_index + 1;
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL

// CUresult gpupool_cuda_unsupported(uint32_t symbol): a library may define its own to report the missing call.
        .weak gpupool_cuda_unsupported
        .hidden gpupool_cuda_unsupported
        .type gpupool_cuda_unsupported, %function
        .p2align 4
gpupool_cuda_unsupported:
#if defined(__x86_64__)
        endbr64
        movl $801, %eax
#else
        mov w0, 801
#endif
        ret
        .size gpupool_cuda_unsupported, . - gpupool_cuda_unsupported

        .section .rodata
        .globl gpupool_cuda_symbol_offsets
        .hidden gpupool_cuda_symbol_offsets
        .type gpupool_cuda_symbol_offsets, %object
        .p2align 4
gpupool_cuda_symbol_offsets:
#define CUDA_SYMBOL(name, version) .long name - gpupool_cuda_symbol_offsets;
#include "protocol/driver/symbols.def"
#undef CUDA_SYMBOL
        .size gpupool_cuda_symbol_offsets, . - gpupool_cuda_symbol_offsets

        .section .note.GNU-stack, "", %progbits
