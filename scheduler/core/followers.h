// The clients that follow a lease: they get its grants and its end, and do not hold it. A lease is named by
// its tenant and the id of the request that it answers, so a client can follow before the lease is granted.
// Owned by Core; its thread. In memory only: clients follow again when they reconnect.
#pragma once
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/core/types.h"

namespace gpupool::scheduler {

class Followers {
 public:
  using LeaseName = std::pair<std::string, std::string>;  // (tenant, request id)

  void add(Stream stream, const std::string& tenant, const std::string& request_id, Time now);
  // Returns false if the stream follows no lease.
  bool remove(Stream stream);
  bool has(Stream stream) const { return names_.contains(stream); }
  std::vector<Stream> of(const std::string& tenant, const std::string& request_id) const;
  size_t count(const std::string& tenant, const std::string& request_id) const;
  size_t count(const std::string& tenant) const;

  // Returns the followers of leases that were not known for `patience`. known(LeaseName) says whether a lease
  // exists or is requested. Call about once a second.
  template <class Known>
  std::vector<Stream> abandoned(Time now, Time patience, Known known) {
    std::vector<Stream> out;
    for (auto& [name, group] : groups_) {
      if (known(name)) group.known_at = now;
      if (now - group.known_at > patience) out.insert(out.end(), group.streams.begin(), group.streams.end());
    }
    return out;
  }

 private:
  struct Group {
    std::set<Stream> streams;
    Time known_at = 0;  // the lease existed or was requested then, or its first follower came
  };
  std::map<LeaseName, Group> groups_;
  std::unordered_map<Stream, LeaseName> names_;
  std::unordered_map<std::string, size_t> of_tenants_;  // numbers of streams, none of them 0
};

}  // namespace gpupool::scheduler
