// driver_app: many small driver-API programs ("scenarios") in one executable. `driver_app NAME [ARGUMENTS]`
// runs a scenario (with --times N: N times), which checks its own results and exits with 1 on an error; its
// output does not depend on the device's location. The tests of tests/e2e run scenarios directly on the
// device and through poold.
#pragma once
#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

namespace app {

using Arguments = std::vector<std::string>;

struct Scenario {
  Scenario(const char* name, void (*body)(const Arguments&));
  const char* name;
  void (*body)(const Arguments&);
  Scenario* next;
};

#define SCENARIO(name)                                         \
  static void name##_body(const ::app::Arguments& arguments);  \
  static ::app::Scenario name##_scenario(#name, &name##_body); \
  static void name##_body([[maybe_unused]] const ::app::Arguments& arguments)

[[noreturn]] void fail(const char* file, int line, const std::string& what);
void check(CUresult result, CUresult expected, const char* file, int line, const char* call);
const char* name_of(CUresult result);

// Each ends the program with an error message if the check fails.
#define OK(call) ::app::check((call), CUDA_SUCCESS, __FILE__, __LINE__, #call)
#define GIVES(expected, call) ::app::check((call), (expected), __FILE__, __LINE__, #call)
#define EXPECT(condition) ((condition) ? void() : ::app::fail(__FILE__, __LINE__, #condition))

// Initializes the driver and makes the primary context of the device current on this thread.
struct Device {
  explicit Device(int ordinal = 0);
  CUdevice device = 0;
  CUcontext context = nullptr;
};

CUcontext create_context(CUdevice device, unsigned flags = 0);

// A module of kernels.cu in the current context, and launches of its kernels.
struct Kernels {
  Kernels();
  CUfunction function(const char* name) const;
  // Looks up kernels, which also loads them on the server. That may wait for all work of the context, so call
  // it before queueing work that waits for the program.
  void load(std::initializer_list<const char*> names) const {
    for (const char* name : names) function(name);
  }
  template <class... A>
  CUresult launch(const char* name, unsigned blocks, unsigned threads, CUstream stream,
                  A... arguments) const {
    void* pointers[sizeof...(A) + 1] = {&arguments..., nullptr};
    return cuLaunchKernel(function(name), blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr);
  }
  CUmodule module = nullptr;
};

// Copies `count` elements from the device; synchronous.
template <class T>
std::vector<T> download(CUdeviceptr from, size_t count) {
  std::vector<T> values(count);
  OK(cuMemcpyDtoH(values.data(), from, count * sizeof(T)));
  return values;
}

// Returns pseudo-random bytes.
std::vector<uint8_t> pattern(size_t bytes, uint32_t seed);
// True if every byte is `value`.
bool holds_only(const void* memory, size_t bytes, uint8_t value);

// Holds a stream with a host function until let_go() is called.
struct Gate {
  void put_into(CUstream stream) {
    OK(cuLaunchHostFunc(
        stream, [](void* self) { static_cast<Gate*>(self)->open.wait(false); }, this));
  }
  void let_go() {
    open = true;
    open.notify_all();
  }
  std::atomic<bool> open{false};
};

}  // namespace app
