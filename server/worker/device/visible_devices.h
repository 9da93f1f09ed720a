// The devices of the host that a session sees: translates the session's device numbers to the device
// library's. All other parts of the worker (contexts, memory, ledger, turns) use the library's numbers.
// Immutable; any thread.
#pragma once
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace gpupool::worker {

class VisibleDevices {
 public:
  VisibleDevices() = default;
  // `ordinals`: the library's device numbers, in the session's order.
  explicit VisibleDevices(std::vector<int> ordinals) : ordinals_(std::move(ordinals)) {}

  static VisibleDevices all(size_t count) {
    std::vector<int> ordinals(count);
    for (size_t i = 0; i < count; ++i) ordinals[i] = static_cast<int>(i);
    return VisibleDevices(std::move(ordinals));
  }
  // Returns the library's number of a device of the session, or nullopt if there is none.
  std::optional<int> find(int device) const {
    if (device < 0 || static_cast<size_t>(device) >= ordinals_.size()) return std::nullopt;
    return ordinals_[static_cast<size_t>(device)];
  }
  // The other way round.
  std::optional<int> number_of(int ordinal) const {
    for (size_t i = 0; i < ordinals_.size(); ++i) {
      if (ordinals_[i] == ordinal) return static_cast<int>(i);
    }
    return std::nullopt;
  }
  const std::vector<int>& ordinals() const { return ordinals_; }

 private:
  std::vector<int> ordinals_;
};

}  // namespace gpupool::worker
