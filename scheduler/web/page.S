/* Embeds page.html as read-only data. */
  .section .rodata
  .global gpupool_page_begin
  .global gpupool_page_end
gpupool_page_begin:
  .incbin PAGE_HTML
gpupool_page_end:
  .byte 0
  .section .note.GNU-stack, "", %progbits
