// Random sequences of events and crashes (random_events.h).
#include "common/sanitizers.h"
#include "tests/scheduler/core/random_events.h"

using namespace gpupool::scheduler;

constexpr unsigned kShare = gpupool::kSanitized ? 4 : 1;  // of the seeds

TEST_CASE("random events never double-allocate or lose a share") {
  std::map<std::string, uint64_t> notes;
  for (uint64_t seed = 1; seed <= 200 / kShare; ++seed) {
    INFO("seed " << seed);
    Simulation simulation(seed, seed % 2 == 0);
    simulation.run(1000);
    for (const auto& [event, times] : simulation.notes()) notes[event] += times;
  }
  // The events are such that moves happen, and end in all ways.
  for (const char* const event :
       {"lease_moving", "lease_moved", "lease_move_failed", "lease_moved_back", "lease_left_node",
        "lease_suspending", "lease_suspended", "lease_not_suspended", "lease_goes_on", "lease_resuming",
        "lease_resumed"}) {
    INFO(event);
    CHECK(notes[event] > 5 / kShare);
  }
}

TEST_CASE("random events never double-allocate or lose a share while leases move for others") {
  std::map<std::string, uint64_t> notes;
  for (uint64_t seed = 1; seed <= 60 / kShare; ++seed) {
    INFO("seed " << seed);
    Simulation simulation(seed, seed % 2 == 0, true);
    simulation.run(1000);
    for (const auto& [event, times] : simulation.notes()) notes[event] += times;
  }
  for (const char* const event : {"lease_moved", "lease_move_failed", "defragmentation_begun",
                                  "defragmentation_done", "defragmentation_failed"}) {
    INFO(event);
    CHECK(notes[event] > 20 / kShare);
  }
}
