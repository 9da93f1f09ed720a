// Raw TCP baselines, measured against a child process on loopback. They have the means that gpupool has: socket buffers
// of several sizes, several streams, and waiting by looking at the socket instead of sleeping in recv().
// Throws std::runtime_error when a socket call fails.
#pragma once
#include <cstddef>
#include <string>

#include "tests/bench/figures.h"

namespace gpupool::bench {

struct TcpSettings {
  int streams = 1;
  int buffer_bytes = 0;           // SO_SNDBUF and SO_RCVBUF; 0: the system's defaults, which grow by themselves
  bool spin = false;              // receivers look at the socket and yield the core between looks, as gpupool does
  size_t per_send = ~size_t{0};   // most bytes given to one send()
};
std::string text(const TcpSettings& settings);

// Median microseconds of sending `request` bytes and waiting for `reply` bytes.
double ping_pong_us(size_t request, size_t reply, bool spin);

// Median GB/s of sending `bytes`, split over the streams, until the last receiver has confirmed its part.
double tcp_GBps(size_t bytes, const TcpSettings& settings);

// Measures `bytes` with every combination of buffer size, waiting and one to `streams` streams.
void measure_tcp(const std::string& name, size_t bytes, int streams, Samples& raw, size_t per_send = ~size_t{0});

struct FastestTcp {
  std::string settings;
  double GBps = 0;
};
// The settings with the highest median under `name`, over all rounds.
FastestTcp fastest_tcp(const std::string& name, const Samples& raw);

}  // namespace gpupool::bench
