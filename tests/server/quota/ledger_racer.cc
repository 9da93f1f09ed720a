// A process of ledger_test.cc that stands for one worker: `ledger_racer ACCOUNT SLOT ACTION BYTES`. ACCOUNT
// is the path of the account's memory; ACTION is fill, churn or stop.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/quota/account_lock.h"
#include "server/quota/ledger.h"

using namespace gpupool::quota;

namespace {

// Reserves pieces until one is refused, prints their number, and waits for the end of the input.
int fill(Ledger& ledger, uint64_t bytes) {
  unsigned taken = 0;
  while (ledger.reserve(0, bytes)) ++taken;
  std::printf("took %u.\n", taken);
  std::fflush(stdout);
  for (char byte; ::read(STDIN_FILENO, &byte, 1) == 1;) {
  }
  ::pause();
  return 0;
}

// Reserves and releases memory until the process is killed.
int churn(Ledger& ledger, uint64_t bytes, unsigned seed) {
  std::vector<uint64_t> held;
  while (true) {
    seed = seed * 1664525 + 1013904223;
    const uint64_t piece = bytes * (1 + (seed >> 16) % 7);
    if ((seed >> 8) % 3 != 0 && ledger.reserve(0, piece)) {
      held.push_back(piece);
    } else if (!held.empty()) {
      ledger.release(0, held.back());
      held.pop_back();
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return 64;
  auto account = SharedPage<Account>::open(::open(words[1], O_RDWR | O_CLOEXEC));
  if (!account) return 65;
  const auto slot = static_cast<uint32_t>(std::strtoul(words[2], nullptr, 10));
  const uint64_t bytes = std::strtoull(words[4], nullptr, 10);
  const std::string what = words[3];
  Ledger ledger(*account, nullptr, slot);
  if (what == "fill") return fill(ledger, bytes);
  if (what == "churn") return churn(ledger, bytes, slot + 1);
  const AccountLock lock(***account, slot, std::chrono::milliseconds(10'000));  // "stop" keeps the lock
  std::printf(lock.held() ? "has it\n" : "has it not\n");
  std::fflush(stdout);
  ::raise(SIGSTOP);
  return 0;
}
