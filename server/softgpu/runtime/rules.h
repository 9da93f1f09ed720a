// The rules of NVIDIA's driver that softgpu enforces (rules.def), and the setting SOFTGPU_RULES, which
// switches them.
//
// cuInit reads the setting once (config.h) and fails for an unknown name. Constant from then on; any thread.
#pragma once
#include <bitset>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace gpupool::softgpu {

enum class Rule : unsigned {
#define SOFTGPU_RULE(name, ...) name,
#include "server/softgpu/runtime/rules.def"
#undef SOFTGPU_RULE
  count
};

struct RuleRow {
  std::string_view name;
  bool on;  // by default
  std::string_view behaviour;
  std::string_view source;
};
// All rules, in the order of the enumeration.
std::span<const RuleRow> rule_rows();

// A rule that is always on; listed for the documentation.
struct FixedRule {
  std::string_view behaviour;
  std::string_view source;
};
std::span<const FixedRule> fixed_rules();

class Rules {
 public:
  Rules();  // the defaults
  // Reads words separated by commas, from left to right: "none" switches all rules off, "-name" one off,
  // "+name" one on. An unknown word gives an error message that lists the rules.
  static std::variant<Rules, std::string> parse(std::string_view setting);
  bool enforces(Rule rule) const { return enforced_[static_cast<size_t>(rule)]; }

 private:
  std::bitset<static_cast<size_t>(Rule::count)> enforced_;
};

}  // namespace gpupool::softgpu
