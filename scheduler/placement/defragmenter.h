// The search for a plan of defragment.h: its state, and its steps in clearing.cc (which parts must leave a
// host or a GPU) and defragment.cc (where they can go). Internal to these two files.
#pragma once
#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "scheduler/placement/defragment.h"

namespace gpupool::placement {

// True if the request can take its share of the GPU now.
bool fits(const DefragGpu& gpu);
// Returns the part of a request's processors or host memory that belongs to `gpus` of its GPUs.
int64_t beside(const DefragRequest& request, int64_t whole, int gpus);
// True if these processors and this host memory suffice for so many GPUs of the request.
bool host_suffices(const DefragRequest& request, int64_t cpu_milli, int64_t memory, int gpus);
// Returns how many GPUs the request could get on the host now; with `one_host` all or none.
int usable_gpus(const DefragHost& host, const DefragRequest& request);

// Searches for one plan.
class Defragmenter {
 public:
  Defragmenter(const std::vector<DefragHost>& hosts, const std::vector<RunningPart>& parts,
               const DefragRequest& request, const DefragLimits& limits, double wait)
      : hosts_(hosts),
        parts_(parts),
        request_(request),
        limits_(limits),
        on_host_(hosts.size()),
        clearing_cost_(hosts.size()) {
    plan_.wait = wait;
    // GPU-seconds counted for a part that cannot move. Its host can never be emptied, so of hosts with
    // equally little free, moved parts go there first.
    constexpr double kNever = 1e9;
    for (uint32_t part = 0; part < parts.size(); ++part) {
      if (parts[part].movable) on_host_[parts[part].host].push_back(part);
      clearing_cost_[parts[part].host] += parts[part].movable ? parts[part].cost() : kNever;
    }
  }

  std::optional<DefragPlan> run() {
    if (!(request_.one_host ? on_one_host() : on_several_hosts())) return std::nullopt;
    std::sort(plan_.place.begin(), plan_.place.end());
    plan_.gain = gain_after(plan_.seconds);
    return std::move(plan_);
  }

 private:
  using Parts = std::vector<uint32_t>;
  // The parts that must leave a host, and the GPUs that the request gets there.
  struct Clearing {
    uint32_t host = 0;
    Parts parts;
    std::vector<uint32_t> gpus;
    double cost = 0;
  };

  double gain_after(double seconds) const {
    return request_.gpus * request_.milli / 1000 * (plan_.wait - seconds);
  }
  // True if the plan may contain these parts besides its present ones.
  bool affordable(const Parts& parts) const {
    double cost = plan_.cost, seconds = plan_.seconds;
    uint64_t bytes = plan_.bytes;
    for (const uint32_t part : parts) {
      cost += parts_[part].cost();
      seconds += parts_[part].seconds;
      bytes += parts_[part].bytes;
    }
    return plan_.moves.size() + parts.size() <= limits_.moves && bytes <= limits_.bytes &&
           cost < gain_after(seconds);
  }
  double cost_of(const Parts& parts) const {
    return std::accumulate(parts.begin(), parts.end(), 0.0,
                           [&](double sum, uint32_t part) { return sum + parts_[part].cost(); });
  }
  static bool contains(const Parts& parts, uint32_t part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  }
  const DefragHost& state(uint32_t host) const {
    const auto changed = changed_.find(host);
    return changed == changed_.end() ? hosts_[host] : changed->second;
  }
  DefragHost& change(uint32_t host) { return changed_.try_emplace(host, hosts_[host]).first->second; }

  // How much compute and memory must become free on a GPU before the request fits; 0 or less: enough is free.
  struct Lack {
    int64_t milli, memory;
    bool none() const { return milli <= 0 && memory <= 0; }
    void cover(const RunningPart& part, uint32_t gpu) {
      for (const RunningPart::Share& share : part.shares) {
        if (share.gpu != gpu) continue;
        milli -= share.milli;
        memory -= static_cast<int64_t>(share.memory);
      }
    }
  };
  bool may_move(uint32_t part, const Parts& gone);
  std::optional<Parts> to_clear(uint32_t host, uint32_t gpu, const Parts& gone);
  std::optional<Clearing> clearing_of(uint32_t host);
  bool clear_host_resources(Clearing& clearing);
  std::optional<std::vector<uint32_t>> match(const RunningPart& part, const DefragHost& to) const;
  const std::vector<uint32_t>& targets_of(const RunningPart& part);
  void take_target(const DefragPlan::Move& move, bool give_back);
  bool move_to(uint32_t part, uint32_t host);
  bool move_all(Parts parts);
  void undo(size_t moves);
  bool on_one_host();
  bool on_several_hosts();
  bool take_with_moves(uint32_t host, uint32_t gpu);
  void take(uint32_t host, uint32_t gpu, const Parts& gone);

  const std::vector<DefragHost>& hosts_;
  const std::vector<RunningPart>& parts_;
  const DefragRequest& request_;
  const DefragLimits& limits_;
  std::vector<Parts> on_host_;  // movable parts
  // By host: GPU-seconds to move all of its parts away; huge if one cannot move.
  std::vector<double> clearing_cost_;
  std::unordered_map<uint32_t, DefragHost> changed_;  // hosts on which the plan has placed something
  std::unordered_map<uint32_t, Parts> gone_;          // by host: parts that the plan moves away
  std::unordered_set<uint32_t> moving_;               // their leases
  std::map<std::vector<uint64_t>, std::vector<uint32_t>> targets_;  // hosts with room, by what is moved
  uint64_t work_ = 0;
  DefragPlan plan_;
};

}  // namespace gpupool::placement
