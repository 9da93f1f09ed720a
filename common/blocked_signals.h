// Blocks signals, so that threads of poold leave them to its main thread, whose event loop they wake.
#pragma once
#include <signal.h>

namespace gpupool {

// Blocks all signals on this thread while the object lives. Threads started meanwhile inherit that for good.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace gpupool
