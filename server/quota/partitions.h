// Assigns groups of each GPU's multiprocessors to tenants and sessions: bookkeeping only. WorkerPool uses it
// on poold's thread.
//
// A GPU that can be divided (green contexts) has groups of multiprocessors, of equal size and with the same
// numbers in every process. A tenant with a partition owns whole groups of each GPU, for all its sessions;
// all other tenants share the groups without an owner. A session keeps its groups until it ends; before that
// no other tenant gets them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "server/quota/account.h"

namespace gpupool::quota {

constexpr uint32_t kMostGroups = 64;  // of one GPU
using Groups = uint64_t;              // one bit for each group

class Partitions {
 public:
  struct Gpu {
    uint32_t groups = 0;           // 0: it cannot be divided
    uint32_t multiprocessors = 0;  // in a group; the last one may have a few more
    uint32_t total = 0;            // multiprocessors
    Groups all() const { return groups >= kMostGroups ? ~Groups{0} : (Groups{1} << groups) - 1; }
    // The number of groups closest to `milli` thousandths of the multiprocessors, at least one.
    uint32_t groups_for(uint32_t milli) const;
    uint32_t count(Groups which) const;  // number of multiprocessors
  };
  using PerGpu = std::vector<Groups>;
  using Shares = std::array<uint32_t, kMostGpus>;  // thousandths of each GPU

  // Sets the host's GPUs, once; at most kMostGpus.
  void set_gpus(std::vector<Gpu> gpus);
  const std::vector<Gpu>& gpus() const { return gpus_; }
  // Sets the tenants that have partitions, and their part of each GPU. Unchanged partitions keep their
  // groups; new ones get groups when there is room, in the order of names.
  void set_tenants(std::map<std::string, Shares> shares);
  // Assigns groups to a new session. Empty: whole GPUs, because there are no partitions; a GPU without groups
  // in the result is whole, too. ErrorCode::limit: there is no room; the message is for the client.
  Result<PerGpu> take(uint64_t session, const std::string& tenant);
  void release(uint64_t session);
  // All assignments, for this process's next program (server/poold/upgrade).
  struct Session {
    std::string tenant;
    PerGpu groups;
  };
  struct Assigned {
    std::map<std::string, PerGpu> tenants;
    std::map<uint64_t, Session> sessions;  // only those of tenants with partitions
  };
  Assigned assigned() const { return {groups_, sessions_}; }
  // Call after set_gpus() and set_tenants(). A tenant whose share has changed since then gets other groups.
  void restore(Assigned before);
  // The tenant's groups; empty: it has none (yet).
  const PerGpu& groups_of(const std::string& tenant) const;
  // Why a tenant's partition has no groups; empty: it has some, or the tenant has no partition.
  std::string unplaced_reason(const std::string& tenant) const;

 private:
  void assign_groups();
  bool find_groups(const std::string& tenant, const Shares& share, PerGpu& groups) const;
  // Groups of tenants other than `but`, including those that their sessions still use.
  Groups taken(size_t gpu, const std::string& but) const;

  std::vector<Gpu> gpus_;
  std::map<std::string, Shares> shares_;
  std::map<std::string, PerGpu> groups_;
  std::map<uint64_t, Session> sessions_;  // only those of tenants with partitions
};

}  // namespace gpupool::quota
