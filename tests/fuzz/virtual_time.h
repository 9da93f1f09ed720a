// An event loop with a virtual clock that only pass() advances: time-outs of seconds cost a fuzzer no time,
// and inputs are reproducible.
//
// virtual_time.cc replaces std::chrono::steady_clock and timerfd_create() for the whole program.
#pragma once
#include <signal.h>

#include <asio/io_context.hpp>
#include <chrono>

namespace gpupool::fuzz {

class Loop {
 public:
  Loop() { ::signal(SIGPIPE, SIG_IGN); }  // as in poold
  // Runs handlers until none is ready.
  void settle() {
    context.restart();
    context.poll();
  }
  // Advances the clock and runs the handlers that are due.
  void pass(std::chrono::milliseconds time);

  asio::io_context context{1};
};

}  // namespace gpupool::fuzz
