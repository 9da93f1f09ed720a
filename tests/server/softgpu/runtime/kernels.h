// PTX kernels for the driver tests.
#pragma once

inline constexpr char kKernels[] = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .global .align 4 .u32 counter = 7;

// out[global thread] = value
.visible .entry fill(.param .u64 out, .param .u32 value) {
  .reg .b32 %r<6>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [out];
  ld.param.u32 %r1, [value];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %d2, %r5, 4;
  add.s64 %d3, %d1, %d2;
  st.global.u32 [%d3], %r1;
  ret;
}

.visible .entry count() {
  .reg .b32 %r<2>; .reg .b64 %d<2>;
  mov.u64 %d1, counter;
  atom.global.add.u32 %r1, [%d1], 1;
  ret;
}

// Until the word is not 0.
.visible .entry spin(.param .u64 word) {
  .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<2>;
  ld.param.u64 %d1, [word];
again:
  ld.volatile.global.u32 %r1, [%d1];
  setp.eq.s32 %p1, %r1, 0;
  @%p1 bra again;
  ret;
}

.visible .entry deep(.param .u64 out) {
  .local .align 4 .b8 frame[8192];
  .reg .b32 %r<2>; .reg .b64 %d<3>;
  ld.param.u64 %d1, [out];
  mov.u64 %d2, frame;
  mov.u32 %r1, 1;
  st.local.u32 [%d2+8000], %r1;
  ld.local.u32 %r1, [%d2+8000];
  st.global.u32 [%d1], %r1;
  ret;
}

.visible .entry bounded() .maxntid 64, 1, 1 {
  ret;
}

// Far outside of every allocation.
.visible .entry stray(.param .u64 out) {
  .reg .b32 %r<2>; .reg .b64 %d<3>;
  ld.param.u64 %d1, [out];
  add.s64 %d2, %d1, 1099511627776;
  mov.u32 %r1, 1;
  st.global.u32 [%d2], %r1;
  ret;
}

.visible .entry misaligned(.param .u64 out) {
  .reg .b32 %r<2>; .reg .b64 %d<2>;
  ld.param.u64 %d1, [out];
  mov.u32 %r1, 1;
  st.global.u32 [%d1+2], %r1;
  ret;
}

.visible .entry trapped(.param .u64 out) {
  trap;
  ret;
}
)";
