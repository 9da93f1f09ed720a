// A substitute for gpupool's client library, for tests in which only its presence matters.
extern "C" __attribute__((visibility("default"))) int gpupool_stand_in() {
  return 1;
}
