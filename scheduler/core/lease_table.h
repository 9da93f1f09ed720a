// All leases, with the indexes by which the core finds them: by the client's stream, by the request that a
// lease answers, by deadline, and the nodes by the labels of their leases. Changes neither nodes nor tenants.
// Owned by Core; its thread.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "scheduler/core/lease.h"

namespace gpupool::scheduler {

class LeaseTable {
 public:
  using ById = std::unordered_map<LeaseId, Lease>;
  using Labels = google::protobuf::RepeatedPtrField<std::string>;

  const ById& all() const { return leases_; }
  ById& all() { return leases_; }
  Lease* find(const LeaseId& id);
  const Lease* find(const LeaseId& id) const;
  Lease* held_by(Stream stream);
  // Returns the lease that answers a tenant's request with this id.
  std::optional<LeaseId> granted_for(const std::string& tenant, const std::string& request_id) const;
  // Adds a lease, with the labels of its nodes. Its deadline is set afterwards.
  Lease& add(Lease lease);
  // Removes a lease without parts, and remembers why it ended.
  void remove(const Lease& lease, Time now);
  // The latest ended leases, oldest first. In memory only.
  const std::deque<EndedLease>& ended() const { return ended_; }

  // Makes `stream` the lease's holder; 0: none.
  void set_holder(Lease& lease, Stream stream);
  void set_deadline(Lease& lease, Time deadline);
  // Returns the lease with the earliest deadline that has passed, or null.
  Lease* next_due(Time now);

  // Call when a part on a node is added to a lease, and when one is freed.
  void add_labels(const Lease& lease, const Node& node) { note_labels(lease, node, true); }
  void forget_labels(const Lease& lease, const Node& node) { note_labels(lease, node, false); }
  // Add the nodes of the tenant's leases that have one of the labels, or that must be apart from one.
  void add_labelled(const std::string& tenant, const Labels& labels, std::set<const Node*>& to) const;
  void add_excluding(const std::string& tenant, const Labels& labels, std::set<const Node*>& to) const;

 private:
  // (tenant, label) -> number of leases on each node
  using Where = std::map<std::pair<std::string, std::string>, std::map<const Node*, uint32_t>>;

  void note_labels(const Lease& lease, const Node& node, bool there);

  ById leases_;
  std::deque<EndedLease> ended_;
  std::unordered_map<Stream, LeaseId> by_stream_;
  std::map<std::pair<std::string, std::string>, LeaseId> by_request_;  // (tenant, request id) -> its lease
  std::set<std::pair<Time, LeaseId>> deadlines_;
  Where labelled_;   // leases with the label
  Where excluding_;  // leases whose apart_from names the label
};

}  // namespace gpupool::scheduler
