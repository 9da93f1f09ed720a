// Finds moves of running leases after which a waiting request fits, and decides whether they cost less than
// they bring. A pure function; any thread. Used by core/defragment.cc and sim/.
//
// Cost: the GPU-seconds for which the moved parts stand still and occupy two places, RunningPart::seconds
// times their GPUs. Gain: the request's GPUs times the time that it would wait otherwise, less the time of
// the moves. Nothing is known of the future, so a lease that has run for some time is assumed to run for as
// long again.
//
// The search is greedy and has a limit of work (DefragLimits::work). A moved part goes to a place that is
// free now, so all moves of a plan can begin at once, and to another host, because a lease has one part on a
// host.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace gpupool::placement {

constexpr int kSearchEverySeconds = 5;  // least time between two searches, for the callers

struct DefragGpu {
  uint32_t kind = 0;    // a share moves only between GPUs of one kind
  uint64_t size = 0;    // bytes of all of its memory; a share moves only to a GPU of at least the same size
  int milli = 0;        // free
  uint64_t memory = 0;  // free
  int need_milli = 0;   // what the request would take of this GPU; 0: it does not suit the request
  uint64_t need_memory = 0;
};

struct DefragHost {
  bool for_request = true;                 // the request may be placed here
  bool for_moves = true;                   // moved parts may be placed here
  int64_t cpu_milli = 0, host_memory = 0;  // free
  std::vector<DefragGpu> gpus;
};

// The shares of one lease on one host.
struct RunningPart {
  struct Share {
    uint32_t gpu = 0;  // index in DefragHost::gpus
    int milli = 0;
    uint64_t memory = 0;
  };
  uint32_t host = 0;
  uint32_t lease = 0;  // a plan moves at most one part of a lease
  std::vector<Share> shares;
  int64_t cpu_milli = 0, host_memory = 0;
  double remaining = 0;  // seconds until it is expected to end
  bool movable = false;
  // Valid if `movable`:
  uint64_t bytes = 0;              // of memory that a move copies
  double seconds = 0;              // that a move takes
  std::vector<uint32_t> excluded;  // hosts that it cannot move to, besides its own
  double cost() const;             // GPU-seconds
};

struct DefragRequest {
  int gpus = 1;
  bool one_host = true;
  int64_t cpu_milli = 0, host_memory = 0;  // of all of its GPUs together
  double milli = 0;                        // of each GPU
};

struct DefragLimits {
  uint32_t moves = UINT32_MAX;
  uint64_t bytes = UINT64_MAX;
  uint64_t work = 500'000;  // most hosts examined as targets of moved parts; bounds the search's time
};

// Limits of all moves together, as a policy sets them. 0: no limit.
struct DefragBudget {
  uint64_t moves = 0, bytes = 0;  // per hour
  uint64_t at_once = 0;           // most moves under way
};

// Returns what the budget still allows after so many moves and bytes in the last hour, while `moving` moves
// are under way.
DefragLimits limits_left(const DefragBudget& budget, uint64_t moves_spent, uint64_t bytes_spent,
                         uint64_t moving);

struct DefragPlan {
  struct Move {
    uint32_t part = 0;  // index of the moved part
    uint32_t host = 0;
    std::vector<uint32_t> gpus;  // for the part's shares, in their order
  };
  std::vector<Move> moves;
  std::vector<std::pair<uint32_t, uint32_t>> place;  // host and GPU, for the request; ordered
  uint64_t bytes = 0;
  double seconds = 0;  // that the moves take, one after the other
  double wait = 0;     // seconds that the request is expected to wait without them
  double cost = 0, gain = 0;
};

// True if the free shares of all hosts together suffice for the request. If not, moves do not help.
bool enough_is_free(const std::vector<DefragHost>& hosts, const DefragRequest& request);

// Returns null if the request fits already, no moves within the limits make it fit, or they cost more than
// they bring.
std::optional<DefragPlan> plan_defragmentation(const std::vector<DefragHost>& hosts,
                                               const std::vector<RunningPart>& parts,
                                               const DefragRequest& request, const DefragLimits& limits);

// Returns the seconds after which the request is expected to fit if nothing moves and nothing new begins; 0:
// it fits now; infinity: never.
double expected_wait(const std::vector<DefragHost>& hosts, const std::vector<RunningPart>& parts,
                     const DefragRequest& request);

}  // namespace gpupool::placement
