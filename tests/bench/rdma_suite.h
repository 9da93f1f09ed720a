// gpupool-bench --suite rdma: bulk copies, null calls and launches over RDMA beside what perftest makes of the same two devices,
// in turns, and what a session has registered. Needs RDMA devices: tests/softroce/run.sh has some.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct RdmaSuite {
  std::string device = "softgpu";
  int rounds = 5;
  std::vector<size_t> sizes{size_t{1} << 20, size_t{4} << 20, size_t{16} << 20, size_t{64} << 20};
  std::vector<std::string> devices;    // of the client and the server; empty: the first two, or the only one
  std::vector<std::string> addresses;  // theirs; empty: as their GIDs say
};

struct RdmaFigures {
  std::string hardware;
  std::vector<Figure> figures;
};

RdmaFigures measure_rdma(const RdmaSuite& suite);

}  // namespace gpupool::bench
