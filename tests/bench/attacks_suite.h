// gpupool-bench --suite attacks: measures the service that a poold under attack gives to other clients, its
// memory, and the size of its log and audit file. The attackers (attacker.cc) are processes that connect from
// other loopback addresses.
#pragma once
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct AttacksSuite {
  std::string device = "softgpu";
  int rounds = 3;
  double seconds = 10;            // per measurement; `resident` takes six times as long
  std::vector<std::string> only;  // parts: answers, resident, records, served; empty: all
};

// Throws std::runtime_error if a program fails or poold does not start.
std::vector<Figure> measure_attacks(const AttacksSuite& suite);

}  // namespace gpupool::bench
