// What gpupool-bench reports: figures with their baselines and targets, as a table and as JSON.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpupool::bench {

// What a figure has to reach; the limit is compared with its value or with its ratio to the baseline.
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
  std::string baseline;   // what it is compared with
  double baseline_value = 0;
  Target target{};
  std::optional<double> costly_ratio;  // where the device's calls cost what a GPU driver's do

  double ratio() const { return baseline_value != 0 ? value / baseline_value : 0; }
  bool reached() const;  // true without a target
};

// Every sample of every measured name; a figure is made of medians.
class Samples {
 public:
  void add(const std::string& name, double value) { values_[name].push_back(value); }
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  // Throws when there is no sample of that name: a figure must not be missing silently.
  double median(const std::string& name) const;
  double most(const std::string& name) const;
  double least(const std::string& name) const;
  std::vector<std::string> names(const std::string& prefix) const;  // all that begin with it

 private:
  const std::vector<double>& of(const std::string& name) const;
  std::map<std::string, std::vector<double>> values_;
};

double median(std::vector<double> values);

void print_table(const std::vector<Figure>& figures);  // on stdout
// `hardware`: what it was measured on, empty for none.
void write_json(const std::string& path, const std::vector<Figure>& figures, const std::string& hardware = "");
void write_markdown(const std::string& path, const std::vector<Figure>& figures);  // the table as docs/performance.md has it

}  // namespace gpupool::bench
