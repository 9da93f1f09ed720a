// The baselines of every figure about the link: what plain blocking sockets do on the same loopback, against a child process.
#pragma once
#include <cstddef>

namespace gpupool::bench {

// Median microseconds of sending `request` bytes and waiting for `reply` bytes.
double ping_pong_us(size_t request, size_t reply);

// Median GB/s of sending `bytes` over one stream and getting one byte of acknowledgement.
double bandwidth_GBps(size_t bytes);

}  // namespace gpupool::bench
