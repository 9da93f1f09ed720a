// Green contexts: some of a device's multiprocessors as a context of its own, and the resources that one is made from.
//
// A multiprocessor of softgpu is a thread of its executor, so a green context with 3 of 8 computes on those three threads of
// this process, whatever else it runs. Other processes' green contexts have threads of their own: who wants theirs to be
// disjoint gives them disjoint multiprocessors, and no more of them than the host has cores. They do not take turns on the
// device with other processes, nor with each other. Thread-safe.
#pragma once
#include <cstdint>
#include <memory>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"

namespace gpupool::softgpu {

// Some multiprocessors of a device. There is one object for each such set, which stays: the driver API has no call to let go
// of a descriptor.
class Resources final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::resources;
  // Null: no room for handles.
  static Ref<Resources> of(Device& device, const Multiprocessors& which);

  Device& device() const { return device_; }
  const std::shared_ptr<const Multiprocessors>& which() const { return which_; }
  unsigned count() const { return static_cast<unsigned>(which_->count()); }
  uint64_t handle() const { return handle_; }

 private:
  Resources(Device& device, const Multiprocessors& which) : device_(device), which_(std::make_shared<const Multiprocessors>(which)) {}
  Device& device_;
  const std::shared_ptr<const Multiprocessors> which_;
  uint64_t handle_ = 0;
};

class GreenContext final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::green_context;
  // Retains the device's primary context until destroy(), which is called once.
  static CUresult create(const Resources& resources, uint64_t* handle);
  void destroy();

  Context& context() const { return *context_; }

 private:
  explicit GreenContext(Ref<Context> context) : context_(std::move(context)) {}
  const Ref<Context> context_;
};

// What cuDevicePrimaryCtxRetain and ...Release do.
CUresult retain_primary(Device& device);
bool release_primary(Device& device);  // false: nobody holds it

}  // namespace gpupool::softgpu
