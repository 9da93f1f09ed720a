// A program of a bundle; see CMakeLists.txt.
extern "C" int gpupool_bundled();

int main() {
  return gpupool_bundled();
}
