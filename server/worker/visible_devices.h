// Which of the host's devices a session sees, and the one place where its numbers become the device library's. Immutable; any
// thread. Everything behind it (contexts, memory, ledger, turns) has the library's numbers.
#pragma once
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace gpupool::worker {

class VisibleDevices {
 public:
  VisibleDevices() = default;
  // `ordinals`: the library's, in the session's order.
  explicit VisibleDevices(std::vector<int> ordinals) : ordinals_(std::move(ordinals)) {}

  static VisibleDevices all(size_t count) {
    std::vector<int> ordinals(count);
    for (size_t i = 0; i < count; ++i) ordinals[i] = static_cast<int>(i);
    return VisibleDevices(std::move(ordinals));
  }
  // Nothing: there is no such device for this session.
  std::optional<int> find(int device) const {
    if (device < 0 || static_cast<size_t>(device) >= ordinals_.size()) return std::nullopt;
    return ordinals_[static_cast<size_t>(device)];
  }
  const std::vector<int>& ordinals() const { return ordinals_; }

 private:
  std::vector<int> ordinals_;
};

}  // namespace gpupool::worker
