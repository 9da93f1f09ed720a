// Draws line plots as SVG, for gpupool-bench and pool-sim. Throws std::runtime_error without points or if the
// file cannot be written.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace gpupool::plot {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Line> lines;
  bool logarithmic = true;  // both axes; then all coordinates must be above 0
};

std::string to_svg(const Plot& plot);
void write_svg(const std::string& path, const Plot& plot);

}  // namespace gpupool::plot
