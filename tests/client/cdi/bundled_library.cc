// A library that a bundle brings for its programs; see CMakeLists.txt.
extern "C" __attribute__((visibility("default"))) int gpupool_bundled() {
  return 0;
}
