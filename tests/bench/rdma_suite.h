// gpupool-bench --suite rdma: measures bulk copies, null calls and launches over RDMA, alternating with
// perftest on the same two devices, and the memory that a session registers. Needs RDMA devices, which
// tests/softroce/run.sh provides. Failures are exceptions.
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
  size_t perftest_bytes = size_t{64} << 20;  // in a run of perftest, which sends at least five messages
  std::vector<std::string> devices;          // client's and server's; empty: the first two, or the only one
  std::vector<std::string> addresses;        // client's and server's; empty: from the GIDs
};

struct RdmaFigures {
  std::string hardware;
  std::vector<Figure> figures;
};

RdmaFigures measure_rdma(const RdmaSuite& suite);

}  // namespace gpupool::bench
