// Core: requests of lease clients, and the life of a lease from its grant to the release of its last part.
#include "common/text/names.h"
#include "common/text/units.h"
#include "protocol/lease/token.h"
#include "scheduler/core/core.h"
#include "scheduler/core/feasibility.h"

namespace gpupool::scheduler {
namespace {

constexpr int kMostTokenLabels = 8;

// True for labels that nodes have in their metrics.
bool is_kubernetes_label(std::string_view label) {
  constexpr size_t kLongest = 300;  // names in Kubernetes have at most 253 characters
  return label.size() <= kLongest &&
         (label.starts_with("namespace=") || label.starts_with("pod=") || label.starts_with("container="));
}

}  // namespace

void Core::request(Stream stream, const std::string& name, const pool::Request& request,
                   std::optional<Time> arrived, Time now) {
  if (request.check_only()) return check(stream, name, request, now);
  if (request.follow()) return follow(stream, name, request, now);
  if (const auto known = leases_.granted_for(name, request.id())) return resume(stream, name, *known, now);
  if (const WaitingRequest* const before = queue_.find(name, request.id())) {  // its old stream is still open
    arrived = std::min(arrived.value_or(now), before->arrived);
    const Stream cut = before->stream;
    client_disconnected(cut, now);
    refuse(cut, Refusal::Kind::busy, "replaced by another connection of the same client");
  }
  counters_.set_requests(counters_.requests() + 1);
  Tenant& whose = tenant(name);
  const auto no = [&](Refusal::Kind kind, const std::string& why) {
    refuse_request(stream, name, request, kind, why);
  };
  if (const auto why = why_never(request, whose, now)) return no(Refusal::Kind::invalid, *why);
  const Demand demand(request);
  if (whose.quota.waiting() != 0 && whose.waiting >= whose.quota.waiting()) {
    return no(Refusal::Kind::exhausted, "tenant '" + name + "' has " + counted(whose.waiting, "request") +
                                            " in the queue, which is the limit of its quota");
  }
  WaitingRequest waiter;
  waiter.stream = stream;
  waiter.number = ++requests_;
  waiter.tenant = name;
  waiter.request = request;
  waiter.request.clear_ticket();
  waiter.request.clear_tenant();
  waiter.arrived = arrived.value_or(now);
  waiter.shape = demand.shape();
  find_defragmentation_of(queue_.add(std::move(waiter)));
  placer_->arrived(demand);
  ++whose.waiting;
  dirty_ = places_changed_ = true;
}

void Core::refuse_request(Stream stream, const std::string& tenant, const pool::Request& request,
                          Refusal::Kind kind, const std::string& why) {
  counters_.set_refused(counters_.refused() + 1);
  note("request_refused", {{"tenant", tenant},
                           {"program", brief_name(request.program())},
                           {"host", brief_name(request.host())},
                           {"reason", why}});
  refuse(stream, kind, why);
}

void Core::grant(WaitingRequest& waiter, const std::vector<GpuSlot>& slots, Time now) {
  const Demand demand(waiter.request);
  Tenant& whose = tenant(waiter.tenant);
  Lease lease;
  lease.id = make_id_();
  lease.tenant = waiter.tenant;
  lease.request = waiter.request;
  lease.queue_id = waiter.queue_id();
  lease.granted = now;
  lease.to_device_bytes_per_second = whose.quota.to_device_bytes_per_second();
  lease.to_host_bytes_per_second = whose.quota.to_host_bytes_per_second();
  lease.sessions = whose.quota.sessions();
  for (const GpuSlot& slot : slots) {
    if (lease.parts.empty() || lease.parts.back().node != slot.node) {
      lease.parts.push_back({.node = slot.node, .shares = {}, .host = {}});
    }
    Gpu& gpu = slot.node->gpus[slot.gpu];
    lease.parts.back().shares.push_back({slot.gpu, demand.of(gpu)});
    gpu.allocations.used += demand.of(gpu);
  }
  for (LeasePart& part : lease.parts) {
    part.host = demand.host_beside(static_cast<uint32_t>(part.shares.size()));
    part.node->host.used += part.host;
  }
  const Stream stream = waiter.stream;
  if (makes_room_for(stream)) {
    counters_.set_defragmentations_granted(counters_.defragmentations_granted() + 1);
    end_defragmentation("defragmentation_done", "", now);
  }
  counters_.set_grant_wait_ms(counters_.grant_wait_ms() +
                              static_cast<uint64_t>(std::max<Time>(0, now - waiter.arrived)));
  counters_.set_granted(counters_.granted() + 1);
  ++whose.granted;
  --whose.waiting;
  queue_.remove(stream);
  places_changed_ = true;
  Lease& kept = index_lease(std::move(lease), now);
  leases_.set_holder(kept, stream);
  for (const LeasePart& part : kept.parts) changed(*part.node, false);
  note("lease_granted", {{"lease", lease::hexadecimal(kept.id)},
                         {"tenant", kept.tenant},
                         {"program", kept.request.program()},
                         {"host", kept.request.host()},
                         {"gpus", std::to_string(kept.request.gpus())},
                         {"compute_milli", std::to_string(kept.request.compute_milli())},
                         {"node", kept.parts.front().node->name()},
                         {"nodes", std::to_string(kept.parts.size())}});
  announce(kept, now);
}

// Registers a lease whose shares are already entered as used in the nodes' allocations: updates the indexes,
// its tenant's usage and the nodes' ending and preemptible amounts, and sets its deadline.
Lease& Core::index_lease(Lease lease, Time now) {
  Lease& kept = leases_.add(std::move(lease));
  begin_usage(kept, now);
  Tenant& whose = tenant(kept.tenant);
  whose.count(now);
  kept.counted = std::any_of(kept.parts.begin(), kept.parts.end(),
                             [](const LeasePart& part) { return part.counted || !part.allocated; });
  whose.leases += kept.counted;
  kept.for_each_part([&](const LeasePart& part) {
    if (part.counted) add_usage(part, whose);
    add_to_class(kept, part);
    part.node->leases.insert(kept.id);
  });
  if (kept.move) moving_.insert(kept.id);
  if (kept.suspension || kept.keeps_until != 0) timed_.insert(kept.id);
  if (kept.ending)
    leases_.set_deadline(kept, std::max(now, kept.end_at));
  else
    leases_.set_deadline(kept, now + policy_.hold_ms());
  return kept;
}

GrantedServer Core::server_of(const Lease& lease, const LeasePart& part, Time now) const {
  GrantedServer server;
  server.address = part.node->inventory.addresses(0);
  lease::Lease& token = server.lease;
  token.set_id(lease.id);
  token.set_serial(part.last_serial == 0 ? lease.serial : std::min(lease.serial, part.last_serial));
  token.set_tenant(lease.tenant);
  token.set_node(part.node->name());
  token.set_boot(part.node->boot());
  for (const auto& share : part.shares) {
    lease::Share& out = *token.add_shares();
    out.set_gpu_uuid(part.node->gpus[share.gpu].uuid);
    out.set_compute_milli(share.amount.milli);
    out.set_memory_bytes(share.amount.memory);
  }
  token.set_issued_ms(now);
  token.set_expires_ms(now + policy_.token_ms());
  token.set_mode(lease.request.mode());
  token.set_priority(lease.request.priority());
  token.set_to_device_bytes_per_second(lease.to_device_bytes_per_second);
  token.set_to_host_bytes_per_second(lease.to_host_bytes_per_second);
  token.set_sessions(lease.sessions);
  for (const std::string& label : lease.request.labels()) {
    if (token.labels_size() < kMostTokenLabels && is_kubernetes_label(label)) token.add_labels(label);
  }
  return server;
}

// Returns the complete grant with fresh tokens.
Grant Core::grant_of(const Lease& lease, Time now) const {
  Grant grant{.lease = lease.id,
              .servers = {},
              .moves = {},
              .expires = now + policy_.token_ms(),
              .hold_ms = policy_.hold_ms()};
  for (const LeasePart& part : lease.parts) grant.servers.push_back(server_of(lease, part, now));
  const auto add_move = [&](size_t place, const LeasePart& part) {
    grant.moves.push_back({static_cast<uint32_t>(place), server_of(lease, part, now)});
  };
  if (lease.move) add_move(lease.move->place, lease.move->to);
  // Programs have sessions there until they have moved back. At most one move is shown for each part.
  std::set<size_t> shown;
  if (lease.move) shown.insert(lease.move->place);
  for (const LeavingPart& one : lease.leaving) {
    if (one.back && !one.part.node->lost && shown.insert(one.place).second) add_move(one.place, one.part);
  }
  return grant;
}

// Sends the grant to the client and to the lease's followers, and schedules the next renewal.
void Core::announce(Lease& lease, Time now) {
  Grant grant = grant_of(lease, now);
  for (const Stream follower : followers_.of(lease.tenant, lease.request.id()))
    effects_.clients.push_back({follower, grant});
  effects_.clients.push_back({lease.holder, std::move(grant)});
  dirty_leases_.insert(lease.id);
  leases_.set_deadline(lease, now + policy_.token_ms() / 2);
}

// Issues new tokens. A disconnected holder gets them when it resumes.
void Core::renew(Lease& lease, Time now) {
  ++lease.serial;
  dirty_leases_.insert(lease.id);
  if (lease.holder != 0) announce(lease, now);
}

void Core::due(Lease& lease, Time now) {
  if (lease.ending) {
    leases_.set_deadline(lease, 0);
    notify_end(lease, now, true);
  } else if (lease.holder != 0) {
    counters_.set_renewed(counters_.renewed() + 1);
    renew(lease, now);
  } else {
    end(lease, pool::Ended::EXPIRED, "the client was disconnected for longer than the hold time", 0, now);
  }
}

void Core::end(Lease& lease, pool::Ended::Why why, const std::string& reason, uint32_t grace_ms, Time now) {
  if (lease.is_suspended()) grace_ms = 0;  // its programs do not run
  const Time at = now + grace_ms;
  if (lease.ending && lease.end_at <= at) return;
  if (!lease.ending) {
    gather_parts(lease, reason, now);
    if (lease.suspension && lease.cannot_suspend.empty())
      counters_.set_suspensions_cut(counters_.suspensions_cut() + 1);
    reclassify(lease, [&] {
      lease.suspension.reset();
      lease.keeps_until = 0;
      lease.ending = true;
    });
    timed_.erase(lease.id);
    lease.why = why;
    lease.reason = reason;
    ++ended_[why];
    note("lease_ending", {{"lease", lease::hexadecimal(lease.id)},
                          {"tenant", lease.tenant},
                          {"why", pool::Ended::Why_Name(why)},
                          {"reason", reason},
                          {"grace_ms", std::to_string(grace_ms)}});
  }
  lease.end_at = at;
  dirty_leases_.insert(lease.id);
  notify_end(lease, now, grace_ms == 0);
  leases_.set_deadline(lease, grace_ms == 0 ? 0 : at);
  for (const LeasePart& part : lease.parts) answer(*part.node);
  dirty_ = true;  // the head of the queue may wait for it
}

void Core::notify_end(Lease& lease, Time, bool over) {
  pool::Ended ended;
  ended.set_why(lease.why);
  ended.set_reason(lease.reason);
  ended.set_at_ms(over ? 0 : lease.end_at);
  for (const Stream follower : followers_.of(lease.tenant, lease.request.id())) {
    effects_.clients.push_back({follower, ended, over});
    if (over) followers_.remove(follower);
  }
  if (lease.holder == 0) return;
  effects_.clients.push_back({lease.holder, std::move(ended), over});
  if (!over) return;
  leases_.set_holder(lease, 0);
}

void Core::release_quota(Lease& lease, Time now) {
  if (!lease.counted) return;
  accrue(lease, now);
  lease.counted = false;
  Tenant& whose = tenant(lease.tenant);
  whose.count(now);
  --whose.leases;
  for (const LeasePart& part : lease.parts) {
    if (part.counted) subtract_usage(part, whose);
  }
  ++capacity_;  // the tenant's quota has room again
}

// Allocates a part that a lease gets besides `Lease::parts`. The lease must not be ending.
void Core::enter_part(Lease& lease, LeasePart& part) {
  part.counted = false;
  part.recalled = std::find(lease.left.begin(), lease.left.end(),
                            std::pair(part.node->name(), part.node->boot())) != lease.left.end();
  for_each_allocation(part, [&](auto& allocations, const auto& amount) { allocations.used += amount; });
  add_to_class(lease, part);
  part.node->leases.insert(lease.id);
  leases_.add_labels(lease, *part.node);
  dirty_leases_.insert(lease.id);
  changed(*part.node, false);
}

// Frees the allocations of a part that the caller removes from the lease. Requires that none of the lease's
// sessions is left there.
void Core::free_part(Lease& lease, const LeasePart& part) {
  remove_from_class(lease, part);
  if (part.allocated)
    for_each_allocation(part, [&](auto& allocations, const auto& amount) { allocations.used -= amount; });
  part.node->leases.erase(lease.id);
  leases_.forget_labels(lease, *part.node);
  dirty_leases_.insert(lease.id);
  changed(*part.node, true);
}

// Frees an ending lease's part on this node. Requires that none of the lease's sessions is left there.
// Deletes the lease with its last part.
void Core::part_gone(Lease& lease, Node& node, Time now) {
  const auto part = std::find_if(lease.parts.begin(), lease.parts.end(),
                                 [&](const LeasePart& one) { return one.node == &node; });
  if (part == lease.parts.end()) return;
  accrue(lease, now);
  const auto counted =
      std::count_if(lease.parts.begin(), lease.parts.end(), [](const LeasePart& one) { return one.counted; });
  if (counted == (part->counted ? 1 : 0) || lease.why == pool::Ended::NODE_LOST) release_quota(lease, now);
  if (lease.counted && part->counted) {  // the lease has other parts: subtract only this one
    Tenant& whose = tenant(lease.tenant);
    whose.count(now);
    subtract_usage(*part, whose);
  }
  free_part(lease, *part);
  lease.parts.erase(part);
  if (!lease.parts.empty()) return;
  notify_end(lease, now, true);
  leases_.set_deadline(lease, 0);
  write_hour(lease);
  note("lease_gone", {{"lease", lease::hexadecimal(lease.id)},
                      {"tenant", lease.tenant},
                      {"why", pool::Ended::Why_Name(lease.why)},
                      {"seconds", std::to_string(std::max<Time>(0, now - lease.granted) / 1000)}});
  leases_.remove(lease, now);
}

void Core::resume(Stream stream, const std::string& name, const LeaseId& id, Time now) {
  Lease* const lease = leases_.find(id);
  if (!lease || (!name.empty() && lease->tenant != name)) {
    pool::Ended ended;
    ended.set_why(pool::Ended::EXPIRED);
    ended.set_reason("it ended while the client was disconnected");
    effects_.clients.push_back({stream, std::move(ended), true});
    return;
  }
  if (lease->holder != 0)
    refuse(lease->holder, Refusal::Kind::busy, "replaced by another connection of the same client");
  leases_.set_holder(*lease, stream);
  if (lease->ending) return notify_end(*lease, now, lease->end_at <= now);
  counters_.set_resumed(counters_.resumed() + 1);
  renew(*lease, now);
}

void Core::release(Stream stream, Time now) {
  if (Lease* const lease = leases_.held_by(stream)) {
    if (lease->ending) notify_end(*lease, now, true);  // do not wait for the end of the grace period
    end(*lease, pool::Ended::RELEASED, "released by the client", 0, now);
    return;
  }
  if (!queue_.find(stream) && !followers_.has(stream)) return;
  client_disconnected(stream, now);
  pool::Ended ended;
  ended.set_reason("released by the client");
  effects_.clients.push_back({stream, std::move(ended), true});
}

void Core::revoke(Stream stream, const std::string& reason, Time now) {
  if (Lease* const lease = leases_.held_by(stream)) return end(*lease, pool::Ended::EVICTED, reason, 0, now);
  if (!queue_.find(stream) && !followers_.has(stream)) return;
  client_disconnected(stream, now);
  refuse(stream, Refusal::Kind::denied, reason);
}

void Core::client_disconnected(Stream stream, Time now) {
  if (followers_.remove(stream)) return;
  if (WaitingRequest* const waiter = queue_.find(stream)) {
    --tenant(waiter->tenant).waiting;
    counters_.set_gave_up(counters_.gave_up() + 1);
    if (makes_room_for(stream)) {
      defragmentation_->stream = 0;
      defragmentation_->hold_until = now;
    }
    queue_.remove(stream);
    dirty_ = places_changed_ = true;
    return;
  }
  Lease* const lease = leases_.held_by(stream);
  if (!lease) return;
  leases_.set_holder(*lease, 0);
  if (!lease->ending) leases_.set_deadline(*lease, now + policy_.hold_ms());
}

}  // namespace gpupool::scheduler
