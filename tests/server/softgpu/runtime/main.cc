// Configures the test process before cuInit: two devices of 256 MiB with 3 threads, all rules enforced, an
// instance of its own.
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace {
struct Configure {
  Configure() {
    setenv("SOFTGPU_DEVICES", "2", 1);
    setenv("SOFTGPU_MEMORY", "256MiB", 1);
    setenv("SOFTGPU_THREADS", "3", 1);
    setenv("SOFTGPU_INSTANCE", ("test-" + std::to_string(getpid())).c_str(), 1);
    setenv("SOFTGPU_CACHE", "off", 1);
    setenv("SOFTGPU_RULES", "+no_host_access", 0);  // rules_off_test.cc sets its own
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("SOFTGPU_COMPUTE_CAPABILITY");
  }
} configure;
}  // namespace
