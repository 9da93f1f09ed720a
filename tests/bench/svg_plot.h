// A plot of lines as an SVG file, both axes logarithmic: enough for the harness, without another program.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace gpupool::bench {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // all above 0
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Line> lines;
};

std::string to_svg(const Plot& plot);
void write_svg(const std::string& path, const Plot& plot);

}  // namespace gpupool::bench
