// See context.h. AAPCS64: x19 to x30 and d8 to d15 survive calls.
#if defined(__aarch64__)
        .text

        .globl  softgpu_context_switch
        .hidden softgpu_context_switch
        .type   softgpu_context_switch, %function
        .p2align 4
softgpu_context_switch:
        sub     sp, sp, #160
        stp     x19, x20, [sp, #0]
        stp     x21, x22, [sp, #16]
        stp     x23, x24, [sp, #32]
        stp     x25, x26, [sp, #48]
        stp     x27, x28, [sp, #64]
        stp     x29, x30, [sp, #80]
        stp     d8, d9, [sp, #96]
        stp     d10, d11, [sp, #112]
        stp     d12, d13, [sp, #128]
        stp     d14, d15, [sp, #144]
        mov     x9, sp
        str     x9, [x0]
        mov     x0, x1

        .globl  softgpu_context_restore
        .hidden softgpu_context_restore
        .type   softgpu_context_restore, %function
softgpu_context_restore:
        mov     sp, x0
        ldp     x19, x20, [sp, #0]
        ldp     x21, x22, [sp, #16]
        ldp     x23, x24, [sp, #32]
        ldp     x25, x26, [sp, #48]
        ldp     x27, x28, [sp, #64]
        ldp     x29, x30, [sp, #80]
        ldp     d8, d9, [sp, #96]
        ldp     d10, d11, [sp, #112]
        ldp     d12, d13, [sp, #128]
        ldp     d14, d15, [sp, #144]
        add     sp, sp, #160
        mov     x9, x30
        br      x9
        .size   softgpu_context_restore, .-softgpu_context_restore
        .size   softgpu_context_switch, .-softgpu_context_switch

        .globl  softgpu_copy_checked
        .hidden softgpu_copy_checked
        .type   softgpu_copy_checked, %function
        .p2align 4
softgpu_copy_checked:
        cbz     x2, softgpu_copy_failed
        .globl  softgpu_copy_begin, softgpu_copy_end, softgpu_copy_failed
        .hidden softgpu_copy_begin, softgpu_copy_end, softgpu_copy_failed
softgpu_copy_begin:
        ldrb    w3, [x1], #1
        strb    w3, [x0], #1
        subs    x2, x2, #1
        b.ne    softgpu_copy_begin
softgpu_copy_end:
softgpu_copy_failed:
        mov     x0, x2
        ret
        .size   softgpu_copy_checked, .-softgpu_copy_checked
#endif

// Emitted for every processor: without this section the linker makes the stack executable.
#if defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
