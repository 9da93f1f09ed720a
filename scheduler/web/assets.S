/* Embeds the files of assets.def as read-only data. */
  .section .rodata
#define ASSET(symbol, file, type) \
  .global gpupool_page_##symbol##_begin; \
  .global gpupool_page_##symbol##_end; \
  gpupool_page_##symbol##_begin: .incbin file; \
  gpupool_page_##symbol##_end: .byte 0;
#include "scheduler/web/assets.def"
  .section .note.GNU-stack, "", %progbits
