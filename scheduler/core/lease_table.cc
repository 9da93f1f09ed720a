#include "scheduler/core/lease_table.h"

namespace gpupool::scheduler {
namespace {

constexpr size_t kMaxEndedLeases = 4096;

template <class Where>
void add_nodes(const Where& where, const std::string& tenant, const LeaseTable::Labels& labels,
               std::set<const Node*>& to) {
  for (const std::string& label : labels) {
    const auto found = where.find({tenant, label});
    if (found == where.end()) continue;
    for (const auto& [node, count] : found->second) to.insert(node);
  }
}

}  // namespace

Lease* LeaseTable::find(const LeaseId& id) {
  const auto found = leases_.find(id);
  return found == leases_.end() ? nullptr : &found->second;
}

const Lease* LeaseTable::find(const LeaseId& id) const {
  const auto found = leases_.find(id);
  return found == leases_.end() ? nullptr : &found->second;
}

Lease* LeaseTable::held_by(Stream stream) {
  const auto found = by_stream_.find(stream);
  return found == by_stream_.end() ? nullptr : find(found->second);
}

std::optional<LeaseId> LeaseTable::granted_for(const std::string& tenant,
                                               const std::string& request_id) const {
  const auto found = by_request_.find({tenant, request_id});
  return found == by_request_.end() ? std::nullopt : std::optional(found->second);
}

Lease& LeaseTable::add(Lease lease) {
  Lease& kept = leases_[lease.id] = std::move(lease);
  if (!kept.request.id().empty()) by_request_[{kept.tenant, kept.request.id()}] = kept.id;
  kept.for_each_part([&](const LeasePart& part) { note_labels(kept, *part.node, true); });
  return kept;
}

void LeaseTable::remove(const Lease& lease, Time now) {
  ended_.push_back({lease.id, lease.queue_id, lease.why, lease.reason, now});
  if (ended_.size() > kMaxEndedLeases) ended_.pop_front();
  by_request_.erase({lease.tenant, lease.request.id()});
  leases_.erase(LeaseId(lease.id));
}

void LeaseTable::set_holder(Lease& lease, Stream stream) {
  by_stream_.erase(lease.holder);
  lease.holder = stream;
  if (stream != 0) by_stream_[stream] = lease.id;
}

void LeaseTable::set_deadline(Lease& lease, Time deadline) {
  deadlines_.erase({lease.deadline, lease.id});
  lease.deadline = deadline;
  if (deadline != 0) deadlines_.insert({deadline, lease.id});
}

Lease* LeaseTable::next_due(Time now) {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return nullptr;
  return find(deadlines_.begin()->second);
}

void LeaseTable::note_labels(const Lease& lease, const Node& node, bool there) {
  const auto note_in = [&](Where& where, const auto& labels) {
    for (const std::string& label : labels) {
      const auto key = std::make_pair(lease.tenant, label);
      auto& nodes = where[key];
      if (there) {
        ++nodes[&node];
      } else if (--nodes[&node] == 0) {
        nodes.erase(&node);
        if (nodes.empty()) where.erase(key);
      }
    }
  };
  note_in(labelled_, lease.request.labels());
  note_in(excluding_, lease.request.apart_from());
}

void LeaseTable::add_labelled(const std::string& tenant, const Labels& labels,
                              std::set<const Node*>& to) const {
  add_nodes(labelled_, tenant, labels, to);
}

void LeaseTable::add_excluding(const std::string& tenant, const Labels& labels,
                               std::set<const Node*>& to) const {
  add_nodes(excluding_, tenant, labels, to);
}

}  // namespace gpupool::scheduler
