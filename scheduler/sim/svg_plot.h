// A plot of lines as an SVG file: enough for gpupool-bench and pool-sim, without another program.
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
  bool logarithmic = true;  // both axes; then all coordinates are above 0
};

std::string to_svg(const Plot& plot);
void write_svg(const std::string& path, const Plot& plot);

}  // namespace gpupool::plot
