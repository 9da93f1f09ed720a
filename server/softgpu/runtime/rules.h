// The rules of NVIDIA's driver that softgpu keeps (rules.def), and which of them SOFTGPU_RULES switches off.
//
// Read once, by cuInit (config.h), and constant from then on.
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
  std::string_view what;
  std::string_view source;
};
// All rules, in the order of the enumeration.
std::span<const RuleRow> rule_rows();

// What SOFTGPU_RULES does not switch, for the documentation.
struct FixedRule {
  std::string_view what;
  std::string_view source;
};
std::span<const FixedRule> fixed_rules();

class Rules {
 public:
  Rules();  // the defaults
  // "none" switches all rules off, "-name" one, and "+name" switches one on; separated by commas, from left to right. An unknown name gives a message
  // that lists the known ones.
  static std::variant<Rules, std::string> parse(std::string_view setting);
  bool keep(Rule rule) const { return kept_[static_cast<size_t>(rule)]; }

 private:
  std::bitset<static_cast<size_t>(Rule::count)> kept_;
};

}  // namespace gpupool::softgpu
