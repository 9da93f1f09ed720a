// An event loop whose clock stands still but for pass(): time-outs of seconds cost a fuzzer nothing, and an
// input does the same each time.
//
// virtual_time.cc replaces std::chrono::steady_clock of the whole program.
#pragma once
#include <signal.h>

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>

namespace gpupool::fuzz {

class Loop {
 public:
  Loop() { ::signal(SIGPIPE, SIG_IGN); }  // as poold does
  // Calls handlers until none is ready.
  void settle() {
    context.restart();
    context.poll();
  }
  // Lets the time pass, and calls what is due then.
  void pass(std::chrono::milliseconds time);

  asio::io_context context{1};
};

}  // namespace gpupool::fuzz
