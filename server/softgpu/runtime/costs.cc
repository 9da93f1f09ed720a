#include "server/softgpu/runtime/costs.h"

#include <time.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>

#include "server/softgpu/exec/spin_lock.h"

namespace gpupool::softgpu {
namespace {

constexpr CostRow kCosts[] = {
#define SOFTGPU_COST(name, unit, h100, meaning, source) {#name, CostUnit::unit, h100, meaning, source},
#include "server/softgpu/runtime/costs.def"
#undef SOFTGPU_COST
};

constexpr double kMaxMicroseconds = 60e6;

constexpr uint64_t kSpunNanoseconds = 50'000;
constexpr uint64_t kSecond = 1'000'000'000;

uint64_t clock_nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
}

std::string unknown_cost(std::string_view name) {
  std::string message = "unknown cost \"" + std::string(name) + "\"; costs:";
  for (const CostRow& row : kCosts) message.append(&row == kCosts ? " " : ", ").append(row.name);
  return message;
}

}  // namespace

std::span<const CostRow> cost_rows() {
  return kCosts;
}

void occupy_thread(uint64_t nanoseconds) {
  const uint64_t end = clock_nanoseconds() + nanoseconds;
  if (nanoseconds > kSpunNanoseconds) {
    const uint64_t wake = end - kSpunNanoseconds;
    const timespec until{static_cast<time_t>(wake / kSecond), static_cast<long>(wake % kSecond)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
  while (clock_nanoseconds() < end) pause_cpu();
}

uint64_t Costs::price(Cost cost, Cost per_unit, uint64_t amount) const {
  const double units = static_cast<double>(amount) /
                       (kCosts[static_cast<size_t>(per_unit)].unit == CostUnit::mib ? 1 << 20 : 1);
  return price(cost) + static_cast<uint64_t>(static_cast<double>(price(per_unit)) * units + 0.5);
}

std::string Costs::read(const std::string& path) {
  try {
    for (const auto& [key, value] : toml::parse_file(path)) {
      const auto where = ", line " + std::to_string(key.source().begin.line) + ": ";
      const std::string_view name = key.str();
      const auto row = std::find_if(std::begin(kCosts), std::end(kCosts),
                                    [&](const CostRow& one) { return one.name == name; });
      if (row == std::end(kCosts)) return where + unknown_cost(key.str());
      const auto microseconds = value.is_number() ? value.value<double>() : std::nullopt;
      if (!microseconds || !(*microseconds >= 0 && *microseconds <= kMaxMicroseconds)) {
        return where + std::string(key.str()) + " must be a number of microseconds from 0 to 60000000";
      }
      set(static_cast<size_t>(row - kCosts), *microseconds);
    }
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    return (line > 0 ? ", line " + std::to_string(line) : "") + ": " + std::string(error.description()) +
           "; expected \"h100\" or the path of a TOML file with lines \"name = microseconds\"";
  }
  return "";
}

std::variant<Costs, std::string> Costs::parse(std::string_view setting, Occupy occupy) {
  Costs costs(occupy);
  costs.on_ = !setting.empty();
  if (setting == "h100") {
    for (size_t i = 0; i < std::size(kCosts); ++i) costs.set(i, kCosts[i].h100);
  } else if (costs.on_) {
    const std::string path(setting);
    if (const std::string wrong = costs.read(path); !wrong.empty())
      return "softgpu: SOFTGPU_COSTS=" + path + wrong;
  }
  return costs;
}

}  // namespace gpupool::softgpu
