// The baselines of every figure about the link, measured against a child process on the same loopback: what plain blocking
// sockets do, and what a copy in memory does.
#pragma once
#include <cstddef>

namespace gpupool::bench {

// Median microseconds of sending `request` bytes and waiting for `reply` bytes.
double ping_pong_us(size_t request, size_t reply);

// Median GB/s of sending `bytes`, split over so many TCP streams at once, until the last receiver has said that it has its
// part. `per_send`: the most bytes given to one send().
double tcp_GBps(size_t bytes, int streams, size_t per_send = ~size_t{0});

// Median GB/s of one memcpy of that size.
double memcpy_GBps(size_t bytes);

}  // namespace gpupool::bench
