// See context.h. System V ABI: rbx, rbp, r12 to r15 survive calls.
#if defined(__x86_64__)
        .text

        .globl  softgpu_context_switch
        .hidden softgpu_context_switch
        .type   softgpu_context_switch, @function
        .p2align 4
softgpu_context_switch:
        endbr64
        pushq   %rbp
        pushq   %rbx
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        movq    %rsp, (%rdi)
        movq    %rsi, %rdi

        .globl  softgpu_context_restore
        .hidden softgpu_context_restore
        .type   softgpu_context_restore, @function
softgpu_context_restore:
        movq    %rdi, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        popq    %rcx
        jmpq    *%rcx           // not ret: it would mispredict, as the return stack belongs to the other stack
        .size   softgpu_context_restore, .-softgpu_context_restore
        .size   softgpu_context_switch, .-softgpu_context_switch

        .globl  softgpu_copy_checked
        .hidden softgpu_copy_checked
        .type   softgpu_copy_checked, @function
        .p2align 4
softgpu_copy_checked:
        endbr64
        movq    %rdx, %rcx
        .globl  softgpu_copy_begin, softgpu_copy_end, softgpu_copy_failed
        .hidden softgpu_copy_begin, softgpu_copy_end, softgpu_copy_failed
softgpu_copy_begin:
        rep movsb
softgpu_copy_end:
softgpu_copy_failed:
        movq    %rcx, %rax
        ret
        .size   softgpu_copy_checked, .-softgpu_copy_checked
#endif

// Emitted for every processor: without this section the linker makes the stack executable.
#if defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
