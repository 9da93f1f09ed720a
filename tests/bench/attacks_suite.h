// gpupool-bench --suite attacks: what a poold under attack still does for others, keeps in memory and writes down. Attackers are processes of their own
// (tests/bench/attacker.cc), on loopback addresses of their own.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct AttacksSuite {
  std::string device = "softgpu";
  int rounds = 3;
  double seconds = 10;            // of each measurement; of the part `resident` six times as long
  std::vector<std::string> only;  // of answers, resident, records, served; empty: all
};

// Throws std::runtime_error when a program fails, or poold does not come up.
std::vector<Figure> measure_attacks(const AttacksSuite& suite);

}  // namespace gpupool::bench
