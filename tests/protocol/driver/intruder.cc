// A library with its own versions of two driver functions, loaded globally before the driver.
extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) {
  return 666;
}
extern "C" __attribute__((visibility("default"))) int cuMemAlloc_v2(void*, unsigned long) {
  return 666;
}
