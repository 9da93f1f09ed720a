// gpupool-bench --suite survive: how long a program's calls wait after its connections were cut, while its
// session moves and while poold is upgraded, and what it costs that sessions can be resumed, compared with
// sessions that cannot.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct SurviveSuite {
  std::string device = "softgpu";
  int rounds = 5;
  bool quick = false;
  std::vector<std::string> only;  // parts: silence, numbering, moves, upgrades; empty: all
};

// Throws std::runtime_error if a program fails.
std::vector<Figure> measure_survival(const SurviveSuite& suite);

}  // namespace gpupool::bench
