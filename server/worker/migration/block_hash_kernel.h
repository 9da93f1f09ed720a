// PTX of the kernel behind DeviceHasher: one block of threads hashes one block of memory. `keys` has
// HashKeys::kWords words; the sums in `sums` must be zero before. Each thread reads 8 bytes of every 2 KiB,
// so that neighbours read neighbouring bytes.
#pragma once

namespace gpupool::worker {

inline constexpr char kBlockHashKernel[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry gpupool_hash_blocks(.param .u64 data, .param .u64 keys, .param .u64 sums)
.maxntid 256, 1, 1
{
  .reg .pred %p;
  .reg .b32 %thread, %block, %count, %lo, %hi, %x, %y;
  .reg .b64 %data, %keys, %sums, %at, %a, %b, %o;
  .reg .b64 %m<4>;
  .reg .b64 %k<4>;
  .reg .b64 %n<4>;
  .reg .b32 %ml<4>;
  .reg .b32 %mh<4>;
  .reg .b32 %kl<4>;
  .reg .b32 %kh<4>;
  .reg .b32 %nl<4>;
  .reg .b32 %nh<4>;
  ld.param.u64 %data, [data];
  ld.param.u64 %keys, [keys];
  ld.param.u64 %sums, [sums];
  cvta.to.global.u64 %data, %data;
  cvta.to.global.u64 %keys, %keys;
  cvta.to.global.u64 %sums, %sums;
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  mul.wide.u32 %at, %block, 65536;
  add.u64 %data, %data, %at;
  mul.wide.u32 %at, %block, 16;
  add.u64 %sums, %sums, %at;
  mul.wide.u32 %at, %thread, 8;
  add.u64 %data, %data, %at;
  add.u64 %keys, %keys, %at;
  mov.u64 %a, 0;
  mov.u64 %b, 0;
  mov.u32 %count, 8;
NEXT:
  ld.global.u64 %m0, [%data + 0];
  ld.global.u64 %k0, [%keys + 0];
  ld.global.u64 %n0, [%keys + 8];
  ld.global.u64 %m1, [%data + 2048];
  ld.global.u64 %k1, [%keys + 2048];
  ld.global.u64 %n1, [%keys + 2056];
  ld.global.u64 %m2, [%data + 4096];
  ld.global.u64 %k2, [%keys + 4096];
  ld.global.u64 %n2, [%keys + 4104];
  ld.global.u64 %m3, [%data + 6144];
  ld.global.u64 %k3, [%keys + 6144];
  ld.global.u64 %n3, [%keys + 6152];
  mov.b64 {%ml0, %mh0}, %m0;
  mov.b64 {%kl0, %kh0}, %k0;
  mov.b64 {%nl0, %nh0}, %n0;
  add.u32 %x, %ml0, %kl0;
  add.u32 %y, %mh0, %kh0;
  mad.wide.u32 %a, %x, %y, %a;
  add.u32 %x, %ml0, %nl0;
  add.u32 %y, %mh0, %nh0;
  mad.wide.u32 %b, %x, %y, %b;
  mov.b64 {%ml1, %mh1}, %m1;
  mov.b64 {%kl1, %kh1}, %k1;
  mov.b64 {%nl1, %nh1}, %n1;
  add.u32 %x, %ml1, %kl1;
  add.u32 %y, %mh1, %kh1;
  mad.wide.u32 %a, %x, %y, %a;
  add.u32 %x, %ml1, %nl1;
  add.u32 %y, %mh1, %nh1;
  mad.wide.u32 %b, %x, %y, %b;
  mov.b64 {%ml2, %mh2}, %m2;
  mov.b64 {%kl2, %kh2}, %k2;
  mov.b64 {%nl2, %nh2}, %n2;
  add.u32 %x, %ml2, %kl2;
  add.u32 %y, %mh2, %kh2;
  mad.wide.u32 %a, %x, %y, %a;
  add.u32 %x, %ml2, %nl2;
  add.u32 %y, %mh2, %nh2;
  mad.wide.u32 %b, %x, %y, %b;
  mov.b64 {%ml3, %mh3}, %m3;
  mov.b64 {%kl3, %kh3}, %k3;
  mov.b64 {%nl3, %nh3}, %n3;
  add.u32 %x, %ml3, %kl3;
  add.u32 %y, %mh3, %kh3;
  mad.wide.u32 %a, %x, %y, %a;
  add.u32 %x, %ml3, %nl3;
  add.u32 %y, %mh3, %nh3;
  mad.wide.u32 %b, %x, %y, %b;
  add.u64 %data, %data, 8192;
  add.u64 %keys, %keys, 8192;
  sub.u32 %count, %count, 1;
  setp.ne.u32 %p, %count, 0;
  @%p bra NEXT;
  mov.u32 %count, 16;
SUM:
  mov.b64 {%lo, %hi}, %a;
  shfl.sync.bfly.b32 %lo, %lo, %count, 31, 0xffffffff;
  shfl.sync.bfly.b32 %hi, %hi, %count, 31, 0xffffffff;
  mov.b64 %o, {%lo, %hi};
  add.u64 %a, %a, %o;
  mov.b64 {%lo, %hi}, %b;
  shfl.sync.bfly.b32 %lo, %lo, %count, 31, 0xffffffff;
  shfl.sync.bfly.b32 %hi, %hi, %count, 31, 0xffffffff;
  mov.b64 %o, {%lo, %hi};
  add.u64 %b, %b, %o;
  shr.u32 %count, %count, 1;
  setp.ne.u32 %p, %count, 0;
  @%p bra SUM;
  and.b32 %x, %thread, 31;
  setp.ne.u32 %p, %x, 0;
  @%p ret;
  red.global.add.u64 [%sums], %a;
  red.global.add.u64 [%sums + 8], %b;
  ret;
}
)";

}  // namespace gpupool::worker
