// Green contexts: contexts on a subset of a device's multiprocessors, and the resources that they are made
// from.
//
// A multiprocessor of softgpu is a thread of its executor: a green context with 3 of 8 multiprocessors
// computes on these three threads of this process. Green contexts of other processes have threads of their
// own, so processes that must not disturb each other need disjoint multiprocessors, and no more in all than
// the host has cores. Green contexts do not take turns on the device with other processes, nor with each
// other. Thread-safe.
#pragma once
#include <cstdint>
#include <memory>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"

namespace gpupool::softgpu {

// A set of a device's multiprocessors. There is one object per set, which is never freed, because the driver
// API has no call to release a descriptor.
class MultiprocessorSet final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::resources;
  // Returns null if the handle table is full.
  static Ref<MultiprocessorSet> of(Device& device, const Multiprocessors& multiprocessors);

  Device& device() const { return device_; }
  const std::shared_ptr<const Multiprocessors>& multiprocessors() const { return multiprocessors_; }
  unsigned count() const { return static_cast<unsigned>(multiprocessors_->count()); }
  uint64_t handle() const { return handle_; }

 private:
  MultiprocessorSet(Device& device, const Multiprocessors& multiprocessors)
      : device_(device), multiprocessors_(std::make_shared<const Multiprocessors>(multiprocessors)) {}
  Device& device_;
  const std::shared_ptr<const Multiprocessors> multiprocessors_;
  uint64_t handle_ = 0;
};

class GreenContext final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::green_context;
  // Creates a green context, which retains the device's primary context until destroy(). destroy() is called
  // once.
  static CUresult create(const MultiprocessorSet& resources, uint64_t* handle);
  void destroy();

  Context& context() const { return *context_; }

 private:
  explicit GreenContext(Ref<Context> context) : context_(std::move(context)) {}
  const Ref<Context> context_;
};

// Implement cuDevicePrimaryCtxRetain and cuDevicePrimaryCtxRelease.
CUresult retain_primary(Device& device);
bool release_primary(Device& device);  // false: it is not retained

}  // namespace gpupool::softgpu
