#include "tests/bench/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace gpupool::bench {
namespace {

using Kind = Target::Kind;

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Formats with three significant digits; from 100 on as an integer.
std::string readable(double value) {
  return number(std::abs(value) >= 100 ? "%.0f" : "%.3g", value);
}

std::string wanted(const Target& target) {
  switch (target.kind) {
    case Kind::none: return "";
    case Kind::value_at_most: return "<= " + number("%.6g", target.limit);
    case Kind::value_at_least: return ">= " + number("%.6g", target.limit);
    case Kind::ratio_at_most: return "<= " + number("%.3g", target.limit) + " x";
    case Kind::ratio_at_least: return ">= " + number("%.3g", target.limit) + " x";
    case Kind::equal: return "= " + number("%.6g", target.limit);
  }
  return "";
}

}  // namespace

bool Figure::reached() const {
  switch (target.kind) {
    case Kind::none: return true;
    case Kind::value_at_most: return value <= target.limit;
    case Kind::value_at_least: return value >= target.limit;
    case Kind::ratio_at_most: return ratio() <= target.limit;
    case Kind::ratio_at_least: return ratio() >= target.limit;
    case Kind::equal: return value == target.limit;
  }
  return false;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double percentile(std::vector<double> values, size_t percent) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * percent / 100];
}

const std::vector<double>& Samples::of(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw std::runtime_error("no samples of " + name);
  return found->second;
}

std::vector<double> Samples::all(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<double>{} : found->second;
}

double Samples::median(const std::string& name) const {
  return bench::median(of(name));
}

double Samples::most(const std::string& name) const {
  return *std::max_element(of(name).begin(), of(name).end());
}

double Samples::least(const std::string& name) const {
  return *std::min_element(of(name).begin(), of(name).end());
}

std::vector<std::string> Samples::names(const std::string& prefix) const {
  std::vector<std::string> found;
  for (const auto& [name, values] : values_) {
    if (name.starts_with(prefix)) found.push_back(name);
  }
  return found;
}

void print_table(const std::vector<Figure>& figures) {
  std::printf("%-28s %-6s %12s %-10s %12s  %-26s %8s %-12s %s\n", "figure", "via", "value", "unit",
              "baseline", "of", "ratio", "target", "reached");
  for (const Figure& f : figures) {
    const bool compared = f.baseline_value != 0;
    std::printf("%-28s %-6s %12.3f %-10s %12s  %-26s %8s %-12s %s\n", f.name.c_str(), f.transport.c_str(),
                f.value, f.unit.c_str(), compared ? number("%.3f", f.baseline_value).c_str() : "",
                f.baseline.c_str(), compared ? number("%.3f", f.ratio()).c_str() : "",
                wanted(f.target).c_str(),
                f.target.kind == Kind::none ? ""
                : f.reached()               ? "yes"
                                            : "NO");
  }
}

void write_json(const std::string& path, const std::vector<Figure>& figures, const std::string& hardware) {
  std::ofstream out(path);
  out << "{";
  if (!hardware.empty()) out << "\"hardware\": \"" << hardware << "\", ";
  out << "\"results\": [";
  const char* separator = "\n  ";
  for (const Figure& f : figures) {
    out << separator << "{\"name\": \"" << f.name << "\", \"transport\": \"" << f.transport
        << "\", \"value\": " << number("%.6g", f.value) << ", \"unit\": \"" << f.unit
        << "\", \"baseline\": \"" << f.baseline
        << "\", \"baseline_value\": " << number("%.6g", f.baseline_value)
        << ", \"ratio\": " << number("%.6g", f.ratio()) << ", \"target\": \"" << wanted(f.target)
        << "\", \"reached\": " << (f.reached() ? "true" : "false");
    if (f.ratio_with_costs) out << ", \"costly_ratio\": " << number("%.6g", *f.ratio_with_costs);
    out << "}";
    separator = ",\n  ";
  }
  out << "\n]}\n";
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

void write_markdown(const std::string& path, const std::vector<Figure>& figures) {
  std::ofstream out(path);
  const bool costly = std::any_of(figures.begin(), figures.end(),
                                  [](const Figure& f) { return f.ratio_with_costs.has_value(); });
  out << "| figure | via | value | baseline | ratio | target | reached |"
      << (costly ? " ratio with costs |" : "") << "\n|---|---|---|---|---|---|---|" << (costly ? "---|" : "")
      << "\n";
  for (const Figure& f : figures) {
    const bool compared = f.baseline_value != 0;
    const std::string baseline =
        compared ? f.baseline + ": " + readable(f.baseline_value) + " " + f.unit : f.baseline;
    const std::string reached = f.target.kind == Kind::none ? "" : f.reached() ? "yes" : "**no**";
    out << "| `" << f.name << "` | " << f.transport << " | " << readable(f.value) << " " << f.unit << " | "
        << baseline << " | " << (compared ? number("%.2f", f.ratio()) : "") << " | " << wanted(f.target)
        << " | " << reached << " |";
    if (costly) out << " " << (f.ratio_with_costs ? number("%.2f", *f.ratio_with_costs) : "") << " |";
    out << "\n";
  }
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace gpupool::bench
