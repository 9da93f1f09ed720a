// Checks that the dashboard, the alerts and docs/operations.md name exactly the metrics that poold exports.
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "server/poold/admin/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace gpupool;

namespace {

std::string content_of(const std::string& file) {
  std::string text = testing::content_of(std::string(SOURCE_FOLDER) + "/" + file);
  REQUIRE_FALSE(text.empty());
  return text;
}

std::set<std::string> names_in(const std::string& text) {
  constexpr std::string_view kPrefix = "gpupool_", kOfNames = "abcdefghijklmnopqrstuvwxyz0123456789_";
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::set<std::string> names;
  size_t end = 0;
  for (size_t at = 0; (at = text.find(kPrefix, at)) != std::string::npos; at = end) {
    end = std::min(text.find_first_not_of(kOfNames, at), text.size());
    const bool starts_word = at == 0 || !is_word(text[at - 1]);
    if (starts_word && end > at + kPrefix.size()) names.insert(text.substr(at, end - at));
  }
  return names;
}

// The metrics of a snapshot with every optional part set.
std::string all_metrics() {
  admin::Snapshot snapshot;
  snapshot.mutable_poold()->mutable_pool()->set_node("gpu-1");
  return server::metrics_text(snapshot);
}

std::set<std::string> exported() {
  std::istringstream lines(all_metrics());
  std::set<std::string> names;
  for (std::string hash, what, name, rest; lines >> hash >> what >> name && std::getline(lines, rest);) {
    if (hash == "#" && what == "TYPE") names.insert(name);
  }
  return names;
}

std::set<std::string> without(const std::set<std::string>& all, const std::set<std::string>& some) {
  std::set<std::string> left;
  for (const std::string& name : all) {
    if (!some.contains(name)) left.insert(name);
  }
  return left;
}

// The PromQL expressions and variable definitions in the JSON, one per line.
std::string expressions(const nlohmann::json& node) {
  std::string text;
  if (node.is_object() && node.contains("expr")) text += node["expr"].get<std::string>() + "\n";
  if (node.is_object() && node.contains("definition")) text += node["definition"].get<std::string>() + "\n";
  if (node.is_structured()) {
    for (const auto& child : node) text += expressions(child);
  }
  return text;
}

}  // namespace

TEST_CASE("each metric of the dashboard and of the alerts is exported") {
  const auto dashboard = nlohmann::json::parse(content_of("examples/monitoring/grafana-dashboard.json"));
  const auto asked = names_in(expressions(dashboard));
  CHECK(asked.size() > 30);
  CHECK(without(asked, exported()) == std::set<std::string>());
  CHECK(without(names_in(content_of("examples/monitoring/alerts.yml")), exported()) ==
        std::set<std::string>());
}

TEST_CASE("docs/operations.md explains all existing metrics and no others") {
  const auto explained = names_in(content_of("docs/operations.md"));
  CHECK(without(exported(), explained) == std::set<std::string>());
  CHECK(without(explained, exported()) == std::set<std::string>());
}

TEST_CASE("metric names have the suffixes of Prometheus' conventions") {
  std::istringstream lines(all_metrics());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    INFO(line);
    CHECK(line.ends_with(" counter") == (line.find("_total ") != std::string::npos));
  }
}
