// Simulated costs of driver calls (costs.def): for how long SOFTGPU_COSTS occupies the calling thread inside
// each call.
//
// cuInit reads the setting once (config.h) and fails for a wrong one; constant from then on. Off by default;
// charging is then free. Thread-safe.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace gpupool::softgpu {

enum class Cost : unsigned {
#define SOFTGPU_COST(name, ...) name,
#include "server/softgpu/runtime/costs.def"
#undef SOFTGPU_COST
  count
};

enum class CostUnit { call, mib, node };

struct CostRow {
  std::string_view name;
  CostUnit unit;
  double h100;  // microseconds
  std::string_view meaning;
  std::string_view source;
};
// All costs, in the order of the enumeration.
std::span<const CostRow> cost_rows();

// Spins up to 50 us. For longer times it sleeps, and spins only the last 50 us, because sleeping threads wake
// up late.
void occupy_thread(uint64_t nanoseconds);

class Costs {
 public:
  using Occupy = void (*)(uint64_t nanoseconds);
  Costs() = default;  // off

  // Empty: off. "h100": the table's numbers. Otherwise the path of a TOML file that gives costs in
  // microseconds by name; missing costs are 0. Returns an error message for a wrong setting. Tests pass an
  // `occupy` of their own.
  static std::variant<Costs, std::string> parse(std::string_view setting, Occupy occupy = occupy_thread);

  bool on() const { return on_; }
  // In nanoseconds; 0 if costs are off. `amount`: bytes for a cost per MiB, nodes for one per node.
  uint64_t price(Cost cost) const { return prices_[static_cast<size_t>(cost)]; }
  uint64_t price(Cost cost, Cost per_unit, uint64_t amount) const;

  // Occupies the calling thread for this time.
  void occupy_for(uint64_t nanoseconds) const {
    if (nanoseconds != 0) [[unlikely]]
      occupy_(nanoseconds);
  }
  void charge(Cost cost) const { occupy_for(price(cost)); }
  void charge(Cost cost, Cost per_unit, uint64_t amount) const {
    if (on_) [[unlikely]]
      occupy_for(price(cost, per_unit, amount));
  }

 private:
  explicit Costs(Occupy occupy) : occupy_(occupy) {}
  void set(size_t row, double microseconds) {
    prices_[row] = static_cast<uint64_t>(microseconds * 1000 + 0.5);
  }
  std::string read(const std::string& path);  // returns an error message, empty if the file is valid

  bool on_ = false;
  std::array<uint64_t, static_cast<size_t>(Cost::count)> prices_{};  // nanoseconds
  Occupy occupy_ = occupy_thread;
};

}  // namespace gpupool::softgpu
