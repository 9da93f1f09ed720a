// Core: the scheduling decisions: which request is granted next, on which GPUs, and what is reserved for the
// first request that does not fit.
//
// Leases have no known duration. A reservation keeps a large request from starving behind small ones: the
// first request that cannot be placed becomes the head of the queue, and the GPUs that are free or will be
// free soonest are reserved for it. Requests behind it get only what the reservation does not need
// (backfill). The head stays the head until it is granted. It loses the reservation temporarily while a
// higher priority has a head, too few hosts are open, or its tenant's quota is exhausted, and then becomes
// the head again.
#include "scheduler/core/core.h"
#include "scheduler/core/feasibility.h"
#include "scheduler/core/preemption.h"

namespace gpupool::scheduler {
namespace {

struct Candidate {
  Wait wait;
  GpuSlot slot;
};

std::vector<GpuSlot> slots_of(const std::vector<Candidate>& candidates) {
  std::vector<GpuSlot> slots;
  for (const Candidate& one : candidates) slots.push_back(one.slot);
  return slots;
}

}  // namespace

const std::optional<std::string>& Core::never_places(const Demand& demand, const std::string& shape) {
  const auto known = impossible_.find(shape);
  if (known != impossible_.end()) return known->second;
  if (impossible_.size() >= 4096) impossible_.clear();
  return impossible_[shape] = why_never_places(nodes_, demand);
}

void Core::refuse_impossible() {
  std::vector<std::pair<Stream, std::string>> refused;
  std::map<std::string, std::optional<std::string>> impossible;  // by shape
  for (const auto& [stream, waiter] : queue_.all()) {
    const Demand demand(waiter.request);
    const Tenant& whose = tenants_.at(waiter.tenant);
    auto known = impossible.find(waiter.shape);
    // Count fenced nodes and withheld GPUs, too: an operator can open them again.
    if (known == impossible.end())
      known = impossible.emplace(waiter.shape, why_never_places(nodes_, demand, true)).first;
    if (known->second)
      refused.emplace_back(stream, *known->second);
    else if (const auto forbidden = never_allowed(waiter.request, whose))
      refused.emplace_back(stream, *forbidden);
    else if (const auto too_much = never_within_memory(nodes_, demand, whose))
      refused.emplace_back(stream, *too_much);
  }
  for (const auto& [stream, why] : refused) {
    const WaitingRequest& waiter = *queue_.find(stream);
    --tenant(waiter.tenant).waiting;
    refuse_request(stream, waiter.tenant, waiter.request, Refusal::Kind::invalid, why);
    queue_.remove(stream);
    dirty_ = places_changed_ = true;
  }
}

Demand Core::demand_now(const WaitingRequest& waiter) const {
  Demand demand(waiter.request);
  const Tenant& whose = tenants_.at(waiter.tenant);
  if (const uint64_t quota = whose.quota.memory_bytes(); quota != 0) {
    // Assume that the demand's other GPUs take the least possible memory.
    const uint64_t others = memory_for(nodes_, demand) / demand.gpus * (demand.gpus - 1);
    demand.most_memory = quota - std::min(quota, whose.memory + others);
  }
  leases_.add_labelled(waiter.tenant, waiter.request.near(), demand.near);
  leases_.add_labelled(waiter.tenant, waiter.request.apart_from(), demand.apart);
  leases_.add_excluding(waiter.tenant, waiter.request.labels(), demand.apart);
  return demand;
}

bool Core::try_to_grant(WaitingRequest& waiter, Time now) {
  if (waiter.failed_at == capacity_) return false;
  const Demand demand = demand_now(waiter);
  counters_.set_placements_tried(counters_.placements_tried() + 1);
  const Tenant& whose = tenant(waiter.tenant);
  auto slots = placer_->place(demand);
  // GPUs of different memory sizes can each be within the quota but exceed it together: retry with an even
  // limit.
  if (slots && exceeds_quota(whose, demand, *slots)) {
    Demand even = demand;
    even.most_memory = (whose.quota.memory_bytes() - whose.memory) / demand.gpus;
    slots = placer_->place(even);
  }
  if (!slots) slots = place_made_for(waiter);
  bool room = slots.has_value();
  std::map<const Node*, uint32_t> by_node;
  for (size_t i = 0; room && i < slots->size();
       ++i) {  // verify the placer's proposal against the allocations
    const Gpu& gpu = (*slots)[i].node->gpus[(*slots)[i].gpu];
    room = (*slots)[i].node->open() && !demand.apart.contains((*slots)[i].node) &&
           demand.of(gpu).within(gpu.allocations.spare());
    ++by_node[(*slots)[i].node];
  }
  for (const auto& [node, gpus] : by_node) room = room && demand.host_beside(gpus).within(node->host.spare());
  room = room && !exceeds_quota(whose, demand, *slots);
  if (!room) {
    waiter.failed_at = capacity_;
    return false;
  }
  grant(waiter, *slots, now);
  return true;
}

void Core::schedule(Time now) {
  if (!std::exchange(dirty_, false)) return;
  places_changed_ = true;  // reasons name the head and the GPUs kept for it
  // Before the queue, which could take all room for ever, but without what is reserved for its head.
  move_away(now);
  const Stream head = std::exchange(head_, 0);
  const std::vector<GpuSlot> before = reservation_;
  lift_reservation();
  lift_kept();
  check_defragmentation(now);
  if (head != 0 && !queue_.find(head)) ++capacity_;
  std::erase_if(heads_, [&](Stream stream) { return !queue_.find(stream); });
  uint32_t failed = 0;
  blocked_.clear();
  for (int priority = lease::Priority_MAX; priority >= lease::Priority_MIN; --priority) {
    if (!schedule_priority(static_cast<lease::Priority>(priority), head, before, failed, now)) break;
  }
  check_place_taken(now);
}

// Has requests behind the head tried again if the head or its reservation has changed: they may fit now.
void Core::note_reservation(Stream head, const std::vector<GpuSlot>& before) {
  const bool same = head_ == head && std::equal(before.begin(), before.end(), reservation_.begin(),
                                                reservation_.end(), [](const GpuSlot& a, const GpuSlot& b) {
                                                  return a.node == b.node && a.gpu == b.gpu;
                                                });
  if (!same) ++capacity_;
}

bool Core::schedule_priority(lease::Priority priority, Stream head, const std::vector<GpuSlot>& before,
                             uint32_t& failed, Time now) {
  resume_suspended(priority, now);
  hold_place_of_absent(priority);
  for (const Stream stream : heads_) {
    WaitingRequest* const first = queue_.find(stream);
    if (!first || first->request.priority() != priority || head_ != 0) continue;
    if (resume_first_.contains(first->tenant)) continue;
    // Its own reservation hid GPUs from the last attempt, so try again even if capacity_ is unchanged.
    first->failed_at = 0;
    if (tenant(first->tenant).over_budget.empty() &&
        fits_quota(nodes_, tenant(first->tenant), Demand(first->request)) && !try_to_grant(*first, now) &&
        reserve(*first, now))
      head_ = stream;
    if (head_ != 0 || stream == head) note_reservation(head, before);
  }
  FairOrder order(queue_, priority, tenants_, total_);
  while (const Stream stream = order.next()) {
    WaitingRequest& waiter = *queue_.find(stream);
    const Demand demand(waiter.request);
    Tenant& whose = tenant(waiter.tenant);
    waiter.over_quota = blocked_.contains(whose.name) || resume_first_.contains(whose.name) ||
                        !whose.over_budget.empty() || !fits_quota(nodes_, whose, demand);
    if (waiter.over_quota) {
      blocked_.insert({whose.name, stream});
      order.blocked();
      continue;
    }
    const uint64_t milli = whose.milli, memory = whose.memory;
    if (stream != head_ && try_to_grant(waiter, now)) {
      order.granted(whose.milli - milli, whose.memory - memory);
      continue;
    }
    order.skipped();
    if (head_ == 0 && reserve(waiter, now)) {
      head_ = stream;
      if (std::find(heads_.begin(), heads_.end(), stream) == heads_.end()) heads_.push_back(stream);
      note_reservation(head, before);
    }
    if (++failed > policy_.backfill()) return false;
  }
  return true;
}

void Core::lift_reservation() {
  std::set<Node*> nodes;
  for (const GpuSlot& slot : reservation_) {
    slot.node->gpus[slot.gpu].allocations.reserved = {};
    slot.node->host.reserved = {};
    nodes.insert(slot.node);
  }
  reservation_.clear();
  for (Node* const node : nodes) placer_->changed(*node);
}

void Core::reserve_slots(std::vector<GpuSlot> slots, const Demand& demand) {
  reservation_ = std::move(slots);
  std::map<Node*, uint32_t> nodes;
  for (const GpuSlot& slot : reservation_) {
    Gpu& gpu = slot.node->gpus[slot.gpu];
    gpu.allocations.reserved = demand.of(gpu);
    ++nodes[slot.node];
  }
  for (const auto& [node, gpus] : nodes) {
    node->host.reserved = demand.host_beside(gpus);
    placer_->changed(*node);
  }
}

// Reserves the GPUs that will be free soonest for the request. If only preemption or the end of other leases
// would free them, begins to move leases away or, where that is not worth it, preemption. Returns false, and
// reserves nothing, if open hosts do not have enough suitable GPUs.
bool Core::reserve(WaitingRequest& waiter, Time now) {
  // While a place is held for an absent request, requests of its priority or a lower one get no reservation;
  // theirs would replace it.
  if (defragmentation_ && defragmentation_->stream == 0 &&
      waiter.request.priority() <= defragmentation_->request.priority())
    return false;
  const Demand demand = demand_now(waiter);
  const Tenant& whose = tenant(waiter.tenant);
  if (hold_place(waiter, demand, now)) return true;
  const bool may_preempt = policy_.preemption() && waiter.request.priority() > lease::BEST_EFFORT;
  const auto sooner = [](const Candidate& a, const Candidate& b) { return a.wait < b.wait; };
  std::vector<Candidate> all, best;
  for (auto& [name, node] : nodes_) {
    if (!node.open() || demand.apart.contains(&node)) continue;
    std::vector<Candidate> here;
    for (uint32_t gpu = 0; gpu < node.gpus.size(); ++gpu) {
      if (!demand.suits(node.gpus[gpu])) continue;
      const Wait wait = wait_for(demand.of(node.gpus[gpu]), node.gpus[gpu].allocations, may_preempt);
      if (wait != never) here.push_back({wait, {&node, gpu}});
    }
    std::stable_sort(here.begin(), here.end(), sooner);
    if (here.size() > demand.gpus) here.resize(demand.gpus);
    here.resize(demand.gpus_beside(node.host.total, static_cast<uint32_t>(here.size())));
    for (uint32_t i = 0; i < here.size(); ++i) {
      here[i].wait = std::max(
          here[i].wait,
          wait_for(demand.one_host ? demand.host : demand.host_beside(i + 1), node.host, may_preempt));
    }
    if (!demand.one_host) {
      all.insert(all.end(), here.begin(), here.end());
      continue;
    }
    if (here.size() < demand.gpus || exceeds_quota(whose, demand, slots_of(here))) continue;
    // Compare hosts by their slowest GPU, then by the sum of all waits.
    const auto cost = [](const std::vector<Candidate>& of) {
      int sum = 0;
      for (const Candidate& one : of) sum += one.wait;
      return std::pair(of.back().wait, sum);
    };
    if (best.empty() || cost(here) < cost(best)) best = std::move(here);
  }
  if (!demand.one_host) {
    if (all.size() < demand.gpus) return false;
    std::stable_sort(all.begin(), all.end(), sooner);
    all.resize(demand.gpus);
    best = std::move(all);
  }
  if (best.empty()) return false;
  if (exceeds_quota(whose, demand, slots_of(best))) return false;
  if (best.back().wait > endings && defragment(waiter, demand, now)) return true;
  reserve_slots(slots_of(best), demand);
  if (best.back().wait == preemption) preempt(demand, waiter, now);
  return true;
}

std::vector<std::pair<Stream, uint32_t>> Core::places() const {
  std::vector<std::pair<Stream, uint32_t>> places;
  places.reserve(queue_.size());
  for (int priority = lease::Priority_MAX; priority >= lease::Priority_MIN; --priority) {
    FairOrder order(queue_, static_cast<lease::Priority>(priority), tenants_, total_);
    const auto before = static_cast<std::ptrdiff_t>(places.size());
    while (const Stream stream = order.next()) {
      const pool::Request& request = queue_.all().at(stream).request;
      places.emplace_back(stream, 0);
      order.granted(uint64_t{request.gpus()} * request.compute_milli(),
                    request.gpus() * request.memory_bytes());
    }
    // Former heads are served before the other requests of their priority.
    for (auto head = heads_.rbegin(); head != heads_.rend(); ++head) {
      const auto at = std::find_if(places.begin() + before, places.end(),
                                   [&](const auto& one) { return one.first == *head; });
      if (at != places.end()) std::rotate(places.begin() + before, at, at + 1);
    }
  }
  for (uint32_t i = 0; i < places.size(); ++i) places[i].second = i + 1;
  return places;
}

void Core::send_places(Time now) {
  places_sent_at_ = now;
  places_changed_ = false;
  const uint32_t waiting = static_cast<uint32_t>(queue_.size());
  std::unordered_map<std::string, std::string> reasons;  // by tenant and shape
  for (const auto& [stream, place] : places()) {
    WaitingRequest& waiter = *queue_.find(stream);
    if (waiter.sent_at != 0 && now < waiter.sent_at + 1000) {
      places_changed_ = true;
      continue;
    }
    std::string why;
    if (waiter.over_quota || blocking_request(waiter) || stream == head_ ||
        waiter.request.apart_from_size() + waiter.request.labels_size() > 0) {
      why = explain(waiter);
    } else {
      std::string& known = reasons[waiter.tenant + '\n' + waiter.shape];
      if (known.empty()) known = explain(waiter);
      why = known;
    }
    if (waiter.sent_at != 0 && waiter.sent_place == place && waiter.sent_waiting == waiting &&
        waiter.sent_why == why)
      continue;
    waiter.sent_at = now;
    waiter.sent_place = place;
    waiter.sent_waiting = waiting;
    waiter.sent_why = why;
    effects_.clients.push_back({stream, QueuePlace{place, waiting, std::move(why), waiter.arrived}});
  }
}

}  // namespace gpupool::scheduler
