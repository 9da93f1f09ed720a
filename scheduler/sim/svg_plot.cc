#include "scheduler/sim/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace gpupool::plot {
namespace {

constexpr double kWidth = 860, kHeight = 520, kLeft = 80, kRight = 190, kTop = 50, kBottom = 60;
constexpr size_t kMaxDots = 40;  // lines with more points are drawn without dots
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e933c", "#8d6a9f",
                                    "#edae49", "#444444", "#00a6a6", "#a0522d"};

std::string text_of(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Formats multiples of 1024 with a binary unit ("4 Ki"), other values as they are.
std::string label(double value) {
  constexpr double kKibi = 1024;
  if (value >= kKibi && std::fmod(value, kKibi) == 0) {
    const char* units[] = {"Ki", "Mi", "Gi"};
    for (int i = 0; i < 3; ++i) {
      value /= kKibi;
      if (value < kKibi || i == 2) return text_of("%.4g ", value) + units[i];
    }
  }
  return text_of("%.4g", value);
}

class Axis {
 public:
  Axis(bool logarithmic, double least, double most, double from, double to)
      : logarithmic_(logarithmic),
        least_(scaled(least)),
        span_(std::max(scaled(most) - least_, 1e-9)),
        from_(from),
        to_(to) {}
  double place(double value) const { return from_ + (scaled(value) - least_) / span_ * (to_ - from_); }

 private:
  double scaled(double value) const { return logarithmic_ ? std::log(value) : value; }

  bool logarithmic_;
  double least_, span_, from_, to_;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

std::string write(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return "<text x=\"" + text_of("%.1f", x) + "\" y=\"" + text_of("%.1f", y) + "\" text-anchor=\"" + anchor +
         "\"" + more + ">" + escaped(text) + "</text>\n";
}

std::string rule(double x1, double y1, double x2, double y2, const char* colour) {
  return "<line x1=\"" + text_of("%.1f", x1) + "\" y1=\"" + text_of("%.1f", y1) + "\" x2=\"" +
         text_of("%.1f", x2) + "\" y2=\"" + text_of("%.1f", y2) + "\" stroke=\"" + colour + "\"/>\n";
}

// Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten within the range.
std::vector<double> ticks(double least, double most) {
  std::vector<double> out;
  for (double power = std::pow(10, std::floor(std::log10(least))); power <= most; power *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (power * step >= least * 0.999 && power * step <= most * 1.001) out.push_back(power * step);
    }
  }
  return out;
}

// Ticks of a linear axis: about eight round steps.
std::vector<double> even_ticks(double least, double most) {
  const double power = std::pow(10, std::floor(std::log10(std::max(most - least, 1e-9) / 8)));
  double step = power;
  for (const double times : {2.0, 5.0, 10.0}) {
    if ((most - least) / step > 10) step = power * times;
  }
  std::vector<double> out;
  for (double tick = std::ceil(least / step) * step; tick <= most + step * 1e-6; tick += step)
    out.push_back(tick);
  return out;
}

}  // namespace

std::string to_svg(const Plot& plot) {
  std::vector<double> xs, ys;
  for (const Line& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  if (xs.empty()) throw std::runtime_error("nothing to plot");
  std::sort(xs.begin(), xs.end());
  xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
  const auto [low, high] = std::minmax_element(ys.begin(), ys.end());
  const double margin = (*high - *low) * 0.05;
  const double least = plot.logarithmic ? *low / 1.3 : *low - (*low == 0 ? 0 : margin),
               most = plot.logarithmic ? *high * 1.3 : *high + margin;
  const Axis x(plot.logarithmic, xs.front(), xs.back(), kLeft, kWidth - kRight),
      y(plot.logarithmic, least, most, kHeight - kBottom, kTop);

  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + text_of("%g", kWidth) +
                    "\" height=\"" + text_of("%g", kHeight) +
                    "\" font-family=\"sans-serif\" font-size=\"12\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += write(kWidth / 2, 26, "middle", plot.title, " font-size=\"16\"");
  for (const double tick : plot.logarithmic ? xs : even_ticks(xs.front(), xs.back())) {
    svg += rule(x.place(tick), kTop, x.place(tick), kHeight - kBottom, "#e4e4e4");
    svg += write(x.place(tick), kHeight - kBottom + 18, "middle", label(tick));
  }
  for (const double tick : plot.logarithmic ? ticks(least, most) : even_ticks(least, most)) {
    svg += rule(kLeft, y.place(tick), kWidth - kRight, y.place(tick), "#e4e4e4");
    svg += write(kLeft - 8, y.place(tick) + 4, "end", text_of("%.4g", tick));
  }
  svg += rule(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "black") +
         rule(kLeft, kTop, kLeft, kHeight - kBottom, "black");
  svg += write((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", plot.x_label);
  svg += write(20, kHeight / 2, "middle", plot.y_label,
               (" transform=\"rotate(-90 20 " + text_of("%g", kHeight / 2) + ")\"").c_str());
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const std::string colour = kColours[i % std::size(kColours)];
    std::string path, dots;
    for (const auto& [px, py] : plot.lines[i].points) {
      const std::string at = text_of("%.1f", x.place(px)) + "," + text_of("%.1f", y.place(py));
      path += (path.empty() ? "" : " ") + at;
      if (plot.lines[i].points.size() <= kMaxDots)
        dots += "<circle cx=\"" + text_of("%.1f", x.place(px)) + "\" cy=\"" + text_of("%.1f", y.place(py)) +
                "\" r=\"3\" fill=\"" + colour + "\"/>\n";
    }
    svg += "<polyline points=\"" + path + "\" fill=\"none\" stroke=\"" + colour +
           "\" stroke-width=\"2\"/>\n" + dots;
    const double row = kTop + 14 + 20 * static_cast<double>(i);
    svg += "<rect x=\"" + text_of("%g", kWidth - kRight + 16) + "\" y=\"" + text_of("%g", row - 9) +
           "\" width=\"14\" height=\"4\" fill=\"" + colour + "\"/>\n";
    svg += write(kWidth - kRight + 36, row - 2, "start", plot.lines[i].name);
  }
  return svg + "</svg>\n";
}

void write_svg(const std::string& path, const Plot& plot) {
  std::ofstream out(path);
  out << to_svg(plot);
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace gpupool::plot
