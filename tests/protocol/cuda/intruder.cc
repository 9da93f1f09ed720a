// Another library's idea of two driver calls, loaded before the driver and for all to see.
extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) {
  return 666;
}
extern "C" __attribute__((visibility("default"))) int cuMemAlloc_v2(void*, unsigned long) {
  return 666;
}
