// probe: an ordinary driver-API program, independent of gpupool, that finds out how this machine's CUDA
// driver behaves where NVIDIA's documentation leaves it open and gpupool depends on it. It can be built
// without this tree:
//
//     g++ -std=c++20 -O1 -I CUDA/include *.cc -lcuda -lpthread -ldl -o probe
//
// `probe LIST` prints the probes' names; `probe NAME` runs one probe and prints one line of JSON with its
// results. If a probe hangs, a watchdog prints the results so far and the current step. A probe throws
// Failure if a required call fails, and Skip if this device cannot answer the question.
#pragma once
#include <cuda.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace probe {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMiB = size_t{1} << 20, kGiB = size_t{1} << 30, kTiB = size_t{1} << 40;

struct Failure : std::runtime_error {
  using runtime_error::runtime_error;
};
struct Skip : std::runtime_error {
  using runtime_error::runtime_error;
};

std::string name_of(CUresult result);
void check(CUresult result, const char* call);
#define CHECK(call) ::probe::check((call), #call)

// A JSON object, built member by member.
class Object {
 public:
  Object& add(const std::string& name, double value);
  Object& add(const std::string& name, bool value);
  Object& add(const std::string& name, const std::string& value);
  Object& add(const std::string& name, const char* value) { return add(name, std::string(value)); }
  Object& add(const std::string& name, const Object& value);
  std::string text() const { return "{" + members_ + "}"; }

 private:
  Object& member(const std::string& name, const std::string& json);
  std::string members_;
};

// Adds a member to the running probe's results. Thread-safe.
void see(const std::string& name, double value);
void see(const std::string& name, bool value);
void see(const std::string& name, const std::string& value);
void see(const std::string& name, const Object& value);
inline void see(const std::string& name, const char* value) {
  see(name, std::string(value));
}
// Sets the current step, which the watchdog reports.
void step(const std::string& what);

// Registers a probe during static initialization. Each probe runs in its own process, before any driver call.
struct Probe {
  Probe(std::string name, std::function<void()> body);
};
#define PROBE(name)                                        \
  static void name##_body();                               \
  static ::probe::Probe name##_probe(#name, &name##_body); \
  static void name##_body()

// Initializes the driver and makes the primary context of device 0 current on this thread.
struct Device {
  Device();
  int attribute(CUdevice_attribute which) const;
  size_t free() const;
  CUdevice device = 0;
  CUcontext context = nullptr;
};

// A module of kKernels in the current context.
struct Kernels {
  Kernels();
  CUfunction function(const char* name) const;
  CUmodule module = nullptr;
};
extern const char* const
    kKernels;  // `nothing`, `big_local` (16 KiB of local memory per thread), `where` (notes multiprocessors)
extern const char* const kLateKernel;  // a module of one kernel, `late`

// A word of pinned memory, accessible to host and device.
struct Word {
  Word();
  void store(uint32_t value) const;
  uint32_t load() const;
  uint32_t* host = nullptr;
  CUdeviceptr device = 0;
};

// A stream that is held until the CPU stores to a word (cuStreamWaitValue32).
struct Parked {
  Parked();
  void release() const { word.store(1); }
  Word word;
  CUstream stream = nullptr;
};

// A thread for calls that may never return. The constructor waits until the thread has set its context,
// before anything blocks. The thread is never joined.
class Caller {
 public:
  explicit Caller(CUcontext context);  // null: no current context
  void begin(std::function<CUresult()> call);
  // Returns the microseconds that the call took, or nothing if it has not returned in time.
  std::optional<double> wait(milliseconds patience);
  CUresult result() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

inline double microseconds(Clock::time_point from, Clock::time_point to = Clock::now()) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}
template <class F>
double time_of(const F& body) {
  const auto begin = Clock::now();
  body();
  return microseconds(begin);
}
double median(std::vector<double> values);
// Waits until `condition` holds; returns false on a timeout.
bool eventually(const std::function<bool()>& condition, milliseconds patience);

// Returns the bytes in use on device 0 according to NVML, which needs no context; nothing without NVML.
std::optional<double> used_bytes();

}  // namespace probe
