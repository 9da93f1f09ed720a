// The table of poold's options, and the kinds of values that only poold has.
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/settings/option_kinds.h"
#include "common/settings/toml_values.h"
#include "protocol/transport/rdma_options.h"
#include "server/poold/options.h"

namespace gpupool::server {
namespace {

using namespace settings;

Result<void> to_endpoints(const std::vector<std::string>& texts, std::vector<transport::Endpoint>& out) {
  std::vector<transport::Endpoint> endpoints;
  for (const std::string& text : texts) {
    auto endpoint = transport::Endpoint::parse(text);
    if (!endpoint) return endpoint.error();
    endpoints.push_back(*endpoint);
  }
  if (endpoints.empty()) return wrong("must have at least one address");
  out = std::move(endpoints);
  return {};
}

OptionValue endpoints(std::vector<transport::Endpoint>& out) {
  const auto read = [&out](const toml::node& node) -> Result<void> {
    std::vector<std::string> texts;
    if (auto list = to_list(node, texts); !list) return list;
    return to_endpoints(texts, out);
  };
  const auto show = [&out] {
    std::string texts;
    for (const auto& endpoint : out) texts += (texts.empty() ? "" : ",") + endpoint.text();
    return texts;
  };
  return list_value([&out](const auto& texts) { return to_endpoints(texts, out); }, read, show);
}

// "yes" or "no" on the command line, true or false in the file.
OptionValue yes_or_no(bool& out) {
  const auto set = [&out](const std::string& text) -> Result<void> {
    out = text == "yes";
    return {};
  };
  return text_value(
      set, [&out](const toml::node& node) { return to_flag(node, out); },
      [&out] { return out ? "yes" : "no"; }, {"yes", "no"});
}

constexpr std::pair<std::string_view, Sandbox> kSandboxes[] = {
    {"on", Sandbox::on}, {"off", Sandbox::off}, {"log", Sandbox::log}};

OptionValue sandbox_mode(Sandbox& out) {
  // Also accepts true and false, the only values before "log" was added.
  const auto read = [&out](const toml::node& node) -> Result<void> {
    const auto flag = node.value_exact<bool>();
    if (!flag) return to_choice(node, kSandboxes, out);
    out = *flag ? Sandbox::on : Sandbox::off;
    return {};
  };
  const auto set = [&out](const std::string& text) -> Result<void> {
    parse(text, out);
    return {};
  };
  return text_value(set, read, [&out] { return name_of(out); }, {"on", "off", "log"});
}

OptionValue no_sandbox_flag(Sandbox& out) {
  const auto set = [&out](bool given) {
    if (given) out = Sandbox::off;
  };
  return flag_value(set, {}, [&out] { return out == Sandbox::off ? "true" : "false"; });
}

using RdmaSettings = std::map<std::string, std::string>;  // ServerOptions::rdma_settings

OptionValue rdma_value(const transport::RdmaSetting& setting, RdmaSettings& out) {
  const auto set = [&](const std::string& text) -> Result<void> {
    transport::RdmaOptions checked;
    if (!setting.read(text, checked)) return wrong("'" + text + "' is not " + setting.values);
    out[setting.variable] = text;
    return {};
  };
  // Numbers may be integers or strings.
  const auto read = [set](const toml::node& node) -> Result<void> {
    if (const auto number = node.value_exact<int64_t>()) return set(std::to_string(*number));
    std::string text;
    if (auto string = to_text(node, text); !string) return string;
    return set(text);
  };
  const auto show = [&] {
    const auto found = out.find(setting.variable);
    return found != out.end() ? found->second : "";
  };
  return text_value(set, read, show);
}

// --rdma-X, and X in [rdma]. transport::rdma_settings() is the table of them.
OptionRows rdma_rows(RdmaSettings& out) {
  OptionRows rows;
  for (const transport::RdmaSetting& setting : transport::rdma_settings()) {
    const std::string name = setting.name;
    rows.emplace_back(named("rdma-" + name, "rdma." + name), rdma_value(setting, out), setting.meaning);
  }
  return rows;
}

}  // namespace

OptionRows option_rows(ServerOptions& options) {
  using namespace settings::kinds;
  OptionRows rows;
#define OPTION(type, member, initial, kind, name, help) rows.emplace_back(name, kind(options.member), help);
#define OPTION_IN(field, kind, name, help) rows.emplace_back(name, kind(options.field), help);
#define MORE_OPTIONS(more) \
  for (OptionRow & row : more) rows.push_back(std::move(row));
#include "server/poold/options.def"
  return rows;
}

}  // namespace gpupool::server
