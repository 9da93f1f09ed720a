// Tests how long the executor polls the device: learnt from the session's waits, and only if cores are free.
#include "server/worker/session/spin_time.h"

#include "tests/support/catch.h"

using gpupool::worker::SpinTime;
using std::chrono::microseconds;

namespace {

int many_cores() {
  return 8;
}
int few_cores() {
  return SpinTime::kFreeCores - 1;
}

void take(SpinTime& spin, microseconds each, int waits) {
  for (int i = 0; i < waits; ++i) spin.note_wait(each);
}

}  // namespace

TEST_CASE("spins longer than the minimum for waits that are known to be short") {
  SpinTime spin(many_cores);
  CHECK(spin.limit() == SpinTime::kShortSpin);  // no waits observed yet
  take(spin, microseconds(60), 50);
  CHECK(spin.limit() == SpinTime::kLeast);
  take(spin, microseconds(110), 50);
  CHECK(spin.limit() > microseconds(150));
  CHECK(spin.limit() <= SpinTime::kMost);
  take(spin, microseconds(400), 50);
  CHECK(spin.limit() == SpinTime::kShortSpin);
}

TEST_CASE("one long wait is forgotten after a few short ones") {
  SpinTime spin(many_cores);
  take(spin, microseconds(60), 50);
  spin.note_wait(std::chrono::seconds(60));
  take(spin, microseconds(60), 10);
  CHECK(spin.limit() > SpinTime::kShortSpin);
}

TEST_CASE("spins only briefly where CPU cores are scarce") {
  SpinTime spin(few_cores);
  take(spin, microseconds(60), 50);
  CHECK(spin.limit() == SpinTime::kShortSpin);
}
