// Pool: one poold for an end-to-end test, and the environments in which a program runs through it or directly
// on the device. Included by the tests of this folder. Not thread-safe; a failed start throws.
#pragma once
#include <string>
#include <vector>

#include "common/sanitizers.h"
#include "tests/support/poold_process.h"

namespace gpupool::testing {

// True if GPUPOOL_TEST_TRANSPORT is shm: programs then detect poold's shared memory themselves, as in
// production. tcp (the default) and rdma force that transport.
bool over_shared_memory();
bool over_rdma();

// Device for poold's --device, from GPUPOOL_TEST_DEVICE: softgpu (the default), nvidia, or the path of a
// device library. Only tests/parity and scenarios_test must pass on devices other than softgpu.
std::string test_device();
bool on_softgpu();

// Paths in the build folder.
std::string driver_app();
std::string client_folder();
std::string softgpu_folder();

constexpr std::chrono::milliseconds kLongPatience{240'000};  // for programs that compute, on a busy machine
constexpr std::chrono::milliseconds kGpuPatience{
    40'000};  // the same on a GPU: a program that hangs costs its time

// One poold on the test's device. Each Pool has a softgpu instance of its own.
class Pool {
 public:
  // `softgpu`: SOFTGPU_* variables for poold and for programs that run directly; other devices ignore them.
  // `launcher`: as for PooldProcess.
  explicit Pool(Environment softgpu = {}, const std::vector<std::string>& options = {},
                const std::string& device = test_device(), const std::vector<std::string>& launcher = {});

  // Stops poold with SIGTERM and removes shared files that killed workers have left behind.
  ~Pool();

  PooldProcess& poold() { return poold_; }
  const std::string& instance() const { return softgpu_.at("SOFTGPU_INSTANCE"); }
  // Returns the pid of the worker that serves `program`, which must have been started without a launcher.
  pid_t worker_of(const Process& program) const;
  // Environments of programs: through() uses poold, directly() loads the device library (a softgpu with its
  // own instance name).
  Environment through(Environment more = {}) const;
  Environment directly(Environment more = {}) const;

 private:
  Environment softgpu_;
  PooldProcess poold_;
};

// Like run_to_end(), with kLongPatience (on softgpu) or kGpuPatience as the time limit.
Finished run_patiently(const std::vector<std::string>& words, const Environment& environment);

// Returns the number of devices that a program sees without the pool.
int count_devices(const Pool& pool);

// Returns a program's output without times and rates, which differ between runs.
std::string without_timings(const std::string& output);
// Returns the lines that contain `text`.
std::vector<std::string> lines_with(const std::string& output, const std::string& text);

// Returns the files of this softgpu instance that its processes share.
std::vector<std::string> shared_files(const std::string& instance);

// Returns the free memory of the first device in bytes, as cuMemGetInfo reports it to a new client.
uint64_t free_bytes(Pool& pool);

}  // namespace gpupool::testing
