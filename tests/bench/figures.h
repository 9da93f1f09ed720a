// The figures that gpupool-bench reports, with baselines and targets, as a table, JSON and Markdown. Throws
// std::runtime_error if samples are missing or a file cannot be written.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpupool::bench {

// The target of a figure; the limit applies to its value or to its ratio to the baseline.
struct Target {
  enum class Kind { none, value_at_most, value_at_least, ratio_at_most, ratio_at_least, equal };
  Kind kind = Kind::none;
  double limit = 0;
};

struct Figure {
  std::string name;
  std::string transport;  // tcp, shm, rdma
  double value = 0;
  std::string unit;
  std::string baseline;  // name of the baseline
  double baseline_value = 0;
  Target target{};
  std::optional<double> ratio_with_costs;  // ratio with the call costs of a GPU driver (--costs)

  double ratio() const { return baseline_value != 0 ? value / baseline_value : 0; }
  bool reached() const;  // true without a target
};

// All samples by name. Figures use their medians.
class Samples {
 public:
  void add(const std::string& name, double value) { values_[name].push_back(value); }
  // Empty if there is none.
  std::vector<double> all(const std::string& name) const;
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  // These throw if there is no sample of this name, so that no figure is missing silently.
  double median(const std::string& name) const;
  double most(const std::string& name) const;
  double least(const std::string& name) const;
  std::vector<std::string> names(const std::string& prefix) const;  // all names with the prefix

 private:
  const std::vector<double>& of(const std::string& name) const;
  std::map<std::string, std::vector<double>> values_;
};

double median(std::vector<double> values);
// Returns a percentile without interpolation; 100: the largest value. `values` must not be empty.
double percentile(std::vector<double> values, size_t percent);

void print_table(const std::vector<Figure>& figures);  // to stdout
// `hardware`: description of the measured hardware; empty: omitted.
void write_json(const std::string& path, const std::vector<Figure>& figures,
                const std::string& hardware = "");
// Writes the table in the format of docs/performance.md.
void write_markdown(const std::string& path, const std::vector<Figure>& figures);

}  // namespace gpupool::bench
