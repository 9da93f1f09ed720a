// poold on a device for end-to-end tests, and the environments in which a program runs through it, or on the
// device directly.
#pragma once
#include <string>
#include <vector>

#include "tests/support/poold_process.h"

namespace gpupool::testing {

// GPUPOOL_TEST_TRANSPORT: tcp (the default) and rdma hold programs to that; with shm they find poold's shared
// memory by themselves, as users' do.
bool over_shared_memory();
bool over_rdma();

// GPUPOOL_TEST_DEVICE, as in poold's --device: softgpu (the default), nvidia, or the path of a device
// library. Only tests/parity and scenarios_test are meant to pass on other devices than softgpu.
std::string test_device();
bool on_softgpu();

// Where programs of the tree are: driver_app, the examples, the libraries.
std::string driver_app();
std::string client_folder();
std::string softgpu_folder();

constexpr std::chrono::milliseconds kLongPatience{240'000};  // for programs that compute, on a busy machine

// One poold on the test's device; a softgpu is one that nobody else uses.
class Pool {
 public:
  // `softgpu`: SOFTGPU_* for the device, on both ways to it; other devices ignore them.
  explicit Pool(Environment softgpu = {}, const std::vector<std::string>& options = {},
                const std::string& device = test_device());

  // Ends poold as its users do; what killed workers have left goes too (else the next softgpu's start removes
  // it).
  ~Pool();

  PooldProcess& poold() { return poold_; }
  const std::string& instance() const { return softgpu_.at("SOFTGPU_INSTANCE"); }
  // The worker that serves a program (which was started directly, not by a launcher).
  pid_t worker_of(const Process& program) const;
  // The environment of a program that runs through poold, and of one that runs on the device directly (on a
  // softgpu of its own).
  Environment through(Environment more = {}) const;
  Environment directly(Environment more = {}) const;

 private:
  Environment softgpu_;
  PooldProcess poold_;
};

// Waits longer than run_to_end() does.
Finished run_patiently(const std::vector<std::string>& words, const Environment& environment);

// Devices that a program sees without the pool.
int count_devices(const Pool& pool);

// What a program printed, without the numbers that differ from run to run: times and rates.
std::string without_timings(const std::string& output);
// The lines that contain `text`.
std::vector<std::string> lines_with(const std::string& output, const std::string& text);

// Files that softgpu shares between processes, of this instance.
std::vector<std::string> shared_files(const std::string& instance);

// Returns the free memory of the first device in bytes, as cuMemGetInfo reports it to a new client.
uint64_t free_bytes(Pool& pool);

}  // namespace gpupool::testing
