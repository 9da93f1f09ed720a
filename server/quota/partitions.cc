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

uint32_t size_of(Groups groups) { return static_cast<uint32_t>(std::popcount(groups)); }

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
  places_.clear();
  settle();
}

void Partitions::set_tenants(std::map<std::string, Wish> wishes) {
  if (wishes == wishes_) return;
  std::erase_if(places_, [&](const auto& entry) {
    const auto now = wishes.find(entry.first);
    return now == wishes.end() || now->second != wishes_.at(entry.first);
  });
  wishes_ = std::move(wishes);
  settle();
}

Result<Partitions::PerGpu> Partitions::take(uint64_t session, const std::string& tenant) {
  if (wishes_.contains(tenant)) {
    const auto place = places_.find(tenant);
    if (place == places_.end()) return Error{ErrorCode::limit, why_not(tenant)};
    sessions_[session] = {tenant, place->second};
    return place->second;
  }
  if (wishes_.empty() && sessions_.empty()) return PerGpu{};
  PerGpu rest(gpus_.size());
  for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    const Groups owned = taken(gpu, "");
    rest[gpu] = gpus_[gpu].all() & ~owned;
    if (owned != 0 && rest[gpu] == 0) {
      return Error{ErrorCode::limit, "no free multiprocessors: partitions of other tenants occupy GPU " + std::to_string(gpu)};
    }
    if (owned == 0) rest[gpu] = 0;  // there are no groups to avoid
  }
  return rest;
}

void Partitions::release(uint64_t session) {
  if (sessions_.erase(session) != 0) settle();
}

const Partitions::PerGpu& Partitions::place(const std::string& tenant) const {
  static const PerGpu none;
  const auto found = places_.find(tenant);
  return found == places_.end() ? none : found->second;
}

std::string Partitions::why_not(const std::string& tenant) const {
  const auto wanted = wishes_.find(tenant);
  if (wanted == wishes_.end() || places_.contains(tenant)) return "";
  if (gpus_.empty()) return "the GPUs are not known yet";
  for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    const Gpu& its = gpus_[gpu];
    const std::string name = "GPU " + std::to_string(gpu);
    if (its.groups == 0) return "cannot place the tenant's partition: " + name + " cannot be partitioned (its driver does not support green contexts)";
    const uint32_t count = its.groups_for(wanted->second[gpu]), there = size_of(its.all() & ~taken(gpu, tenant));
    if (count > there) {
      return "cannot place the tenant's partition of " + std::to_string(count * its.multiprocessors) + " multiprocessors: only " +
             std::to_string(there * its.multiprocessors) + " of the " + std::to_string(its.total) + " of " + name +
             " are free";
    }
  }
  return "cannot place the tenant's partition";
}

void Partitions::settle() {
  for (const auto& [tenant, wish] : wishes_) {
    if (PerGpu place; !places_.contains(tenant) && find_place(tenant, wish, place)) places_.emplace(tenant, std::move(place));
  }
}

bool Partitions::find_place(const std::string& tenant, const Wish& wish, PerGpu& place) const {
  for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    const uint32_t count = gpus_[gpu].groups_for(wish[gpu]);
    place.push_back(lowest(gpus_[gpu].all() & ~taken(gpu, tenant), count));
    if (count == 0 || size_of(place.back()) != count) return false;
  }
  return !gpus_.empty();
}

Groups Partitions::taken(size_t gpu, const std::string& but) const {
  Groups all = 0;
  for (const auto& [tenant, place] : places_) {
    if (tenant != but) all |= place[gpu];
  }
  for (const auto& [number, session] : sessions_) {
    if (session.tenant != but && gpu < session.groups.size()) all |= session.groups[gpu];
  }
  return all;
}

}  // namespace gpupool::quota
