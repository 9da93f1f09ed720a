#include "server/softgpu/runtime/rules.h"

#include <algorithm>

namespace gpupool::softgpu {
namespace {

constexpr RuleRow kRows[] = {
#define SOFTGPU_RULE(name, on, behaviour, source) {#name, on, behaviour, source},
#include "server/softgpu/runtime/rules.def"
#undef SOFTGPU_RULE
};

constexpr FixedRule kFixed[] = {
#define SOFTGPU_RULE(...)
#define SOFTGPU_FIXED_RULE(behaviour, source) {behaviour, source},
#include "server/softgpu/runtime/rules.def"
#undef SOFTGPU_RULE
};

std::string unknown_rule(std::string_view setting, std::string_view word) {
  std::string message = "softgpu: SOFTGPU_RULES=" + std::string(setting) + ": \"" + std::string(word) +
                        "\": expected \"none\", or \"-\" or \"+\" followed by the name of a rule; rules:";
  for (const RuleRow& row : kRows) message.append(&row == kRows ? " " : ", ").append(row.name);
  return message;
}

}  // namespace

std::span<const RuleRow> rule_rows() {
  return kRows;
}
std::span<const FixedRule> fixed_rules() {
  return kFixed;
}

Rules::Rules() {
  for (size_t i = 0; i < std::size(kRows); ++i) enforced_[i] = kRows[i].on;
}

std::variant<Rules, std::string> Rules::parse(std::string_view setting) {
  Rules rules;
  for (std::string_view rest = setting; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    if (word == "none") {
      rules.enforced_.reset();
      continue;
    }
    const bool sign = word.starts_with('-') || word.starts_with('+');
    const auto row = std::find_if(std::begin(kRows), std::end(kRows),
                                  [&](const RuleRow& one) { return sign && one.name == word.substr(1); });
    if (row == std::end(kRows)) return unknown_rule(setting, word);
    rules.enforced_[static_cast<size_t>(row - kRows)] = word.starts_with('+');
  }
  return rules;
}

}  // namespace gpupool::softgpu
