// Information about a grid's program and device for the device runtime. Implemented by
// runtime/kernel_services.cc; called on pool threads. Thread-safe.
#pragma once
#include <cstdint>
#include <optional>

namespace gpupool::softgpu {

struct GridRequest;

// Kernels are identified by the addresses that the grid's own program has for them. Attribute and limit
// numbers are CUDA's. All of these come from the running kernel and may be invalid.
class KernelServices {
 public:
  virtual ~KernelServices() = default;
  virtual std::optional<uint32_t> parameter_bytes(uint64_t kernel) const = 0;  // nullopt: no such kernel
  // Returns true if the kernel can run in the request's shape.
  virtual bool fits(uint64_t kernel, const GridRequest& request) const = 0;
  // Fills in the kernel's part of the request; returns false if it cannot. May compile, so must not be called
  // on a fiber.
  virtual bool prepare(uint64_t kernel, GridRequest& request) const = 0;
  virtual std::optional<int> kernel_attribute(uint64_t kernel, int attribute) const = 0;
  virtual std::optional<int> blocks_per_multiprocessor(uint64_t kernel, int threads,
                                                       uint64_t dynamic_shared) const = 0;
  virtual int device() const = 0;
  virtual int device_count() const = 0;
  virtual std::optional<int> device_attribute(int device, int attribute) const = 0;
  virtual std::optional<uint64_t> limit(int limit) const = 0;
  virtual int version() const = 0;  // CUDA version, as reported by the driver
};

}  // namespace gpupool::softgpu
