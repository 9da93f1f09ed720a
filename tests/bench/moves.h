// The part `moves` of gpupool-bench --suite survive: how long a program waits while its session moves from
// one poold to another one on this host and back (docs/adr/0037-migration.md), with memory of which it writes
// a twentieth all the time.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

class Moves {
 public:
  Moves(std::string device, bool quick) : device_(std::move(device)), quick_(quick) {}

  // Moves a session of each size. Throws std::runtime_error if one does not move, or loses something.
  void round();
  void add_figures(std::vector<Figure>& all) const;

 private:
  struct Measured {
    std::vector<double> silence_ms;      // the longest round of the program during a move
    std::vector<double> usual_ms;        // the same while nothing moves, for as long
    std::vector<double> whole_ms;        // from the request to the answer
    std::vector<double> silent_percent;  // bytes sent while the program waited, of all
  };
  void measure(uint64_t bytes, Measured& measured);

  const std::string device_;
  const bool quick_;
  std::map<uint64_t, Measured> by_bytes_;
};

}  // namespace gpupool::bench
