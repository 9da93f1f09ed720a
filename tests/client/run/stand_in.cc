// In the place of gpupool's client library, where only its being there matters.
extern "C" __attribute__((visibility("default"))) int gpupool_stand_in() {
  return 1;
}
