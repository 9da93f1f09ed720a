#include "server/quota/partitions.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace gpupool::quota {
namespace {

// Returns the lowest `count` groups of `from`, or all of them if there are fewer.
Groups lowest(Groups from, uint32_t count) {
  Groups out = 0;
  for (; count > 0 && from != 0; --count) {
    const Groups one = from & (~from + 1);
    out |= one;
    from ^= one;
  }
  return out;
}

uint32_t size_of(Groups groups) {
  return static_cast<uint32_t>(std::popcount(groups));
}

}  // namespace

uint32_t Partitions::Gpu::groups_for(uint32_t milli) const {
  if (groups == 0 || multiprocessors == 0) return 0;
  const uint64_t thousandths = uint64_t{total} * milli, each = uint64_t{multiprocessors} * kWholeGpu;
  const auto nearest = static_cast<uint32_t>((thousandths + each / 2) / each);
  return std::clamp(nearest, 1u, groups);
}

uint32_t Partitions::Gpu::count(Groups which) const {
  if (groups == 0) return total;
  const uint32_t more = (which >> (groups - 1) & 1) != 0 ? total - groups * multiprocessors : 0;
  return size_of(which) * multiprocessors + more;
}

void Partitions::set_gpus(std::vector<Gpu> gpus) {
  gpus_ = std::move(gpus);
  groups_.clear();
  assign_groups();
}

void Partitions::set_tenants(std::map<std::string, Shares> shares) {
  if (shares == shares_) return;
  std::erase_if(groups_, [&](const auto& entry) {
    const auto now = shares.find(entry.first);
    return now == shares.end() || now->second != shares_.at(entry.first);
  });
  shares_ = std::move(shares);
  assign_groups();
}

Result<Partitions::PerGpu> Partitions::take(uint64_t session, const std::string& tenant) {
  if (shares_.contains(tenant)) {
    const auto groups = groups_.find(tenant);
    if (groups == groups_.end()) return Error{ErrorCode::limit, unplaced_reason(tenant)};
    sessions_[session] = {tenant, groups->second};
    return groups->second;
  }
  if (shares_.empty() && sessions_.empty()) return PerGpu{};
  PerGpu rest(gpus_.size());
  for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    const Groups owned = taken(gpu, "");
    rest[gpu] = gpus_[gpu].all() & ~owned;
    if (owned != 0 && rest[gpu] == 0) {
      return Error{ErrorCode::limit,
                   "no free multiprocessors: partitions of other tenants occupy GPU " + std::to_string(gpu)};
    }
    if (owned == 0) rest[gpu] = 0;  // there are no groups to avoid
  }
  return rest;
}

void Partitions::restore(Assigned before) {
  sessions_ = std::move(before.sessions);
  groups_.clear();
  for (auto& [tenant, groups] : before.tenants) {
    const auto wanted = shares_.find(tenant);
    if (wanted == shares_.end() || groups.size() != gpus_.size()) continue;
    bool same = true;
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu)
      same &= size_of(groups[gpu]) == gpus_[gpu].groups_for(wanted->second[gpu]);
    if (same) groups_.emplace(tenant, std::move(groups));
  }
  assign_groups();
}

void Partitions::release(uint64_t session) {
  if (sessions_.erase(session) != 0) assign_groups();
}

const Partitions::PerGpu& Partitions::groups_of(const std::string& tenant) const {
  static const PerGpu none;
  const auto found = groups_.find(tenant);
  return found == groups_.end() ? none : found->second;
}

std::string Partitions::unplaced_reason(const std::string& tenant) const {
  const auto wanted = shares_.find(tenant);
  if (wanted == shares_.end() || groups_.contains(tenant)) return "";
  if (gpus_.empty()) return "the GPUs are not known yet";
  for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    const Gpu& its = gpus_[gpu];
    const std::string name = "GPU " + std::to_string(gpu);
    if (its.groups == 0) {
      return "cannot place the tenant's partition: " + name +
             " cannot be partitioned (its driver does not support green contexts)";
    }
    const uint32_t count = its.groups_for(wanted->second[gpu]),
                   there = size_of(its.all() & ~taken(gpu, tenant));
    if (count > there) {
      return "cannot place the tenant's partition of " + std::to_string(count * its.multiprocessors) +
             " multiprocessors: only " + std::to_string(there * its.multiprocessors) + " of the " +
             std::to_string(its.total) + " of " + name + " are free";
    }
  }
  return "cannot place the tenant's partition";
}

void Partitions::assign_groups() {
  for (const auto& [tenant, share] : shares_) {
    if (PerGpu groups; !groups_.contains(tenant) && find_groups(tenant, share, groups))
      groups_.emplace(tenant, std::move(groups));
  }
}

bool Partitions::find_groups(const std::string& tenant, const Shares& share, PerGpu& groups) const {
  for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    const uint32_t count = gpus_[gpu].groups_for(share[gpu]);
    groups.push_back(lowest(gpus_[gpu].all() & ~taken(gpu, tenant), count));
    if (count == 0 || size_of(groups.back()) != count) return false;
  }
  return !gpus_.empty();
}

Groups Partitions::taken(size_t gpu, const std::string& but) const {
  Groups all = 0;
  for (const auto& [tenant, groups] : groups_) {
    if (tenant != but) all |= groups[gpu];
  }
  for (const auto& [number, session] : sessions_) {
    if (session.tenant != but && gpu < session.groups.size()) all |= session.groups[gpu];
  }
  return all;
}

}  // namespace gpupool::quota
