// What the device runtime has to know of a grid's program and device, for the kernels that ask. Thread-safe.
#pragma once
#include <cstdint>
#include <optional>

namespace gpupool::softgpu {

struct GridRequest;

// Kernels are those of the grid's own program, by the addresses that its code has for them. Numbers of attributes and limits
// are CUDA's, and come from the kernel: any may be wrong.
class KernelServices {
 public:
  virtual ~KernelServices() = default;
  virtual std::optional<uint32_t> parameter_bytes(uint64_t kernel) const = 0;  // nothing: no such kernel
  virtual bool fits(uint64_t kernel, const GridRequest& request) const = 0;    // can it run in the request's shape?
  // Fills in what belongs to the kernel; false when it cannot. May compile: not on a fiber.
  virtual bool prepare(uint64_t kernel, GridRequest& request) const = 0;
  virtual std::optional<int> kernel_attribute(uint64_t kernel, int attribute) const = 0;
  virtual std::optional<int> blocks_per_multiprocessor(uint64_t kernel, int threads, uint64_t dynamic_shared) const = 0;
  virtual int device() const = 0;
  virtual int device_count() const = 0;
  virtual std::optional<int> device_attribute(int device, int attribute) const = 0;
  virtual std::optional<uint64_t> limit(int limit) const = 0;
  virtual int version() const = 0;  // of CUDA
};

}  // namespace gpupool::softgpu
