// Which parts of each GPU's multiprocessors are whose: the book-keeping alone. One thread.
//
// A GPU that can be divided (green contexts) has groups of multiprocessors, of equal size and numbered the same way in every
// process. A tenant with a partition has whole groups of each GPU, for all its sessions; all other tenants together have
// those that nobody owns. A session keeps the groups with which it began until it ends, so they are not another
// tenant's before.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/wire/result.h"
#include "server/quota/account.h"

namespace gpupool::quota {

constexpr uint32_t kMostGroups = 64;  // of one GPU
using Groups = uint64_t;              // one bit for each

class Partitions {
 public:
  struct Gpu {
    uint32_t groups = 0;           // 0: it cannot be divided
    uint32_t multiprocessors = 0;  // of a group; the last one may have a few more
    uint32_t total = 0;            // multiprocessors
    Groups all() const { return groups >= kMostGroups ? ~Groups{0} : (Groups{1} << groups) - 1; }
    // As near to so many thousandths of the multiprocessors as groups come, and one at least.
    uint32_t groups_for(uint32_t milli) const;
    uint32_t count(Groups which) const;  // multiprocessors
  };
  using PerGpu = std::vector<Groups>;
  using Wish = std::array<uint32_t, kMostGpus>;  // thousandths of each GPU

  // The host's; known once. At most kMostGpus.
  void set_gpus(std::vector<Gpu> gpus);
  const std::vector<Gpu>& gpus() const { return gpus_; }
  // The tenants that have partitions, and how much of each GPU. Who is not named has none. What is unchanged stays where it is;
  // what is new gets its place when there is room, in the order of names.
  void set_tenants(std::map<std::string, Wish> wishes);
  // For a session that begins. Empty: whole GPUs, as if there were no partitions; likewise a GPU with no groups. Fails,
  // in words for the client, where there is no place for it.
  Result<PerGpu> take(uint64_t session, const std::string& tenant);
  void release(uint64_t session);
  // A tenant's place; empty: it has none (yet).
  const PerGpu& place(const std::string& tenant) const;
  // Why a tenant that has a partition has no place; empty: it has.
  std::string why_not(const std::string& tenant) const;

 private:
  struct Session {
    std::string tenant;
    PerGpu groups;
  };
  void settle();
  bool find_place(const std::string& tenant, const Wish& wish, PerGpu& place) const;
  // Of other tenants: what is theirs, and what their sessions still have.
  Groups taken(size_t gpu, const std::string& but) const;

  std::vector<Gpu> gpus_;
  std::map<std::string, Wish> wishes_;
  std::map<std::string, PerGpu> places_;
  std::map<uint64_t, Session> sessions_;  // those of partitions
};

}  // namespace gpupool::quota
