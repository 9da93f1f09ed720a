// Raw TCP baselines for gpupool-bench, measured against a child process on loopback with the options that
// gpupool uses: several socket buffer sizes, several streams, and polling instead of sleeping in recv().
// Throws std::runtime_error if a socket call fails.
#pragma once
#include <cstddef>
#include <string>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct TcpSettings {
  int streams = 1;
  int buffer_bytes = 0;          // SO_SNDBUF and SO_RCVBUF; 0: the system's defaults with autotuning
  bool spin = false;             // receivers poll the socket and yield the core in between, as gpupool does
  size_t per_send = ~size_t{0};  // maximum number of bytes per send()
};
std::string text(const TcpSettings& settings);

// Returns the median time in microseconds to send `request` bytes and receive `reply` bytes.
double ping_pong_us(size_t request, size_t reply, bool spin);

// Returns the median rate in GB/s of sending `bytes`, split over the streams, until all receivers have
// confirmed.
double tcp_GBps(size_t bytes, const TcpSettings& settings);

// Measures transfers of `bytes` with every combination of buffer size, spinning, and 1, 2, 4, ... `streams`
// streams.
void measure_tcp(const std::string& name, size_t bytes, int streams, Samples& raw,
                 size_t per_send = ~size_t{0});

struct FastestTcp {
  std::string settings;
  double GBps = 0;
};
// Returns the settings with the highest median over all rounds of the measurement `name`.
FastestTcp fastest_tcp(const std::string& name, const Samples& raw);

}  // namespace gpupool::bench
