#include "server/quota/memory_moves.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace gpupool::quota {
namespace {

uint64_t sum(uint64_t a, uint64_t b) {  // saturates: sessions may report anything
  uint64_t both = 0;
  return __builtin_add_overflow(a, b, &both) ? UINT64_MAX : both;
}
uint64_t difference(uint64_t a, uint64_t b) {
  return a > b ? a - b : 0;
}

bool is_idle(const MemoryUse& use, MoveTime now) {
  if (!use.idle_since || *use.idle_since > now) return false;
  const MoveTime idle = now - *use.idle_since;
  return idle >= (use.stays_until <= now ? kIdleAfter : kSurelyIdleAfter);
}

struct Candidate {
  enum Class { idle, waiting, at_work };
  Class why;
  MoveTime order;
  const MemoryUse* use;
};

}  // namespace

MoveChoice choose_moves(const MemoryRequest& request, const std::vector<MemoryUse>& sessions,
                        const std::function<uint64_t(const std::string&)>& guaranteed, uint64_t device_bytes,
                        uint64_t host_room, MoveTime now) {
  std::map<std::string, uint64_t> surplus;  // resident bytes of a tenant above its guaranteed memory
  const MemoryUse* asking = nullptr;
  uint64_t need = request.bytes;
  bool others_have = false;
  for (const MemoryUse& use : sessions) {
    uint64_t& resident = surplus[use.tenant];
    resident = sum(resident, std::min(use.resident, use.will_keep.value_or(use.resident)));
    if (use.session == request.session)
      asking = &use;
    else if (use.will_keep) {
      need = difference(need, difference(use.resident, *use.will_keep));
      others_have = true;
    }
  }
  if (!asking) return {{}, true};
  // Its own memory cannot make room for it: all of it must fit on the device.
  if (!request.returns && sum(sum(asking->resident, asking->in_host), request.bytes) > device_bytes)
    return {{}, true};
  MoveChoice choice;
  const bool entitled = choice.entitled =
      sum(surplus[asking->tenant], request.bytes) <= guaranteed(asking->tenant);
  for (auto& [tenant, bytes] : surplus) bytes = difference(bytes, guaranteed(tenant));

  std::vector<Candidate> candidates;
  for (const MemoryUse& use : sessions) {
    if (&use == asking || use.will_keep || std::min({use.movable, surplus[use.tenant], host_room}) == 0)
      continue;
    others_have = true;
    if (use.waits_since) {
      const bool later = std::tie(*use.waits_since, use.session) > std::tie(request.since, request.session);
      if (later || entitled) candidates.push_back({Candidate::waiting, -*use.waits_since, &use});
    } else if (is_idle(use, now)) {
      candidates.push_back({Candidate::idle, *use.idle_since, &use});
    } else if (entitled || use.stays_until <= now) {
      candidates.push_back({Candidate::at_work, use.stays_until, &use});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.why, a.order, a.use->session) < std::tie(b.why, b.order, b.use->session);
  });
  // Makes more room than needed, so that a program that allocates piece by piece does not wait for each
  // piece.
  const uint64_t more = request.returns ? 0 : asking->resident / 2;
  for (const Candidate& candidate : candidates) {
    if (need == 0) break;
    const MemoryUse& use = *candidate.use;
    uint64_t& left = surplus[use.tenant];
    const uint64_t most = std::min({use.movable, use.resident, left, host_room});
    if (most == 0) continue;
    const uint64_t bytes = std::min(std::max(need, more), most);
    choice.orders.push_back(
        {use.session, bytes, most, use.resident - most, candidate.why != Candidate::idle});
    left -= most;
    host_room -= most;
    need = difference(need, bytes);
  }
  choice.hopeless = !request.returns && !others_have;
  return choice;
}

}  // namespace gpupool::quota
