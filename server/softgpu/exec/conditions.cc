#include "server/softgpu/exec/conditions.h"

#include <map>
#include <mutex>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {
namespace {

struct Conditions {
  std::mutex mutex;
  std::map<uint64_t, uint32_t> values;
};

Conditions& all() {
  static auto* instance = new Conditions;
  return *instance;
}

}  // namespace

void add_condition(uint64_t handle, uint32_t value) {
  const std::lock_guard lock(all().mutex);
  all().values[handle] = value;
}

void remove_condition(uint64_t handle) {
  const std::lock_guard lock(all().mutex);
  all().values.erase(handle);
}

void set_condition(uint64_t handle, uint32_t value) {
  const std::lock_guard lock(all().mutex);
  if (const auto found = all().values.find(handle); found != all().values.end()) found->second = value;
}

uint32_t condition_value(uint64_t handle) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().values.find(handle);
  return found == all().values.end() ? 0 : found->second;
}

}  // namespace gpupool::softgpu

extern "C" void softgpu_set_condition(gpupool::softgpu::ThreadContext*, uint64_t handle, uint32_t value) {
  gpupool::softgpu::set_condition(handle, value);
}
