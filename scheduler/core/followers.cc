// Followers, and Core: requests that get no lease of their own, because they only ask whether they could be
// granted, or follow the lease of another client.
#include "scheduler/core/followers.h"

#include "common/text/units.h"
#include "scheduler/core/core.h"
#include "scheduler/core/feasibility.h"

namespace gpupool::scheduler {
namespace {

constexpr size_t kMostFollowers = 4096;  // of a lease: more than the nodes of a job

}  // namespace

void Followers::add(Stream stream, const std::string& tenant, const std::string& request_id, Time now) {
  const LeaseName name{tenant, request_id};
  const auto [group, is_new] = groups_.try_emplace(name);
  if (is_new) group->second.known_at = now;
  group->second.streams.insert(stream);
  names_[stream] = name;
  ++of_tenants_[tenant];
}

bool Followers::remove(Stream stream) {
  const auto name = names_.find(stream);
  if (name == names_.end()) return false;
  const auto group = groups_.find(name->second);
  group->second.streams.erase(stream);
  if (group->second.streams.empty()) groups_.erase(group);
  const auto tenant = of_tenants_.find(name->second.first);
  if (--tenant->second == 0) of_tenants_.erase(tenant);
  names_.erase(name);
  return true;
}

std::vector<Stream> Followers::of(const std::string& tenant, const std::string& request_id) const {
  if (names_.empty()) return {};
  const auto group = groups_.find({tenant, request_id});
  if (group == groups_.end()) return {};
  return {group->second.streams.begin(), group->second.streams.end()};
}

size_t Followers::count(const std::string& tenant, const std::string& request_id) const {
  const auto group = groups_.find({tenant, request_id});
  return group == groups_.end() ? 0 : group->second.streams.size();
}

size_t Followers::count(const std::string& tenant) const {
  const auto found = of_tenants_.find(tenant);
  return found == of_tenants_.end() ? 0 : found->second;
}

// Returns why the request can never be granted; null if it may be. Until the nodes have registered, only the
// request and the tenant's quota are judged.
std::optional<std::string> Core::why_never(const pool::Request& request, const Tenant& whose, Time now) {
  if (auto wrong = check_request(request)) return wrong;
  if (auto why = never_allowed(request, whose)) return why;
  if (!settled(now)) return std::nullopt;
  const Demand demand(request);
  if (const auto& why = never_places(demand, demand.shape())) return why;
  return never_within_memory(nodes_, demand, whose);
}

void Core::check(Stream stream, const std::string& name, const pool::Request& request, Time now) {
  if (const auto why = why_never(request, tenant(name), now))
    return refuse_request(stream, name, request, Refusal::Kind::invalid, *why);
  pool::Ended ended;
  ended.set_reason("the request was only checked");
  effects_.clients.push_back({stream, std::move(ended), true});
}

void Core::follow(Stream stream, const std::string& name, const pool::Request& request, Time now) {
  const std::string& id = request.id();
  if (const auto wrong = check_request(request)) return refuse(stream, Refusal::Kind::invalid, *wrong);
  if (id.empty())
    return refuse(stream, Refusal::Kind::invalid, "a lease can only be followed by a request id");
  if (followers_.count(name, id) >= kMostFollowers) {
    return refuse(stream, Refusal::Kind::exhausted,
                  "the lease has " + std::to_string(kMostFollowers) + " followers, which is the limit");
  }
  const uint32_t most = tenant(name).quota.followers();
  if (const size_t count = followers_.count(name); most != 0 && count >= most) {
    return refuse(stream, Refusal::Kind::exhausted,
                  "tenant '" + name + "' has " + counted(count, "follower") +
                      " of leases, which is the limit of its quota (followers)");
  }
  followers_.add(stream, name, id, now);
  const auto known = leases_.granted_for(name, id);
  Lease* const lease = known ? leases_.find(*known) : nullptr;
  if (lease == nullptr) return;
  if (lease->ending) return notify_end(*lease, now, lease->end_at <= now);
  effects_.clients.push_back({stream, grant_of(*lease, now)});
}

void Core::check_followers(Time now) {
  const auto known = [&](const Followers::LeaseName& name) {
    return leases_.granted_for(name.first, name.second) || queue_.find(name.first, name.second) != nullptr;
  };
  for (const Stream stream : followers_.abandoned(now, policy_.hold_ms(), known)) {
    followers_.remove(stream);
    refuse(stream, Refusal::Kind::invalid,
           "the lease to follow does not exist: no client has requested it, or its request was refused");
  }
}

}  // namespace gpupool::scheduler
