// Compares the core's views of nodes, leases and tenants with each other, for the random test. Fails the test
// case with Catch's REQUIRE.
#pragma once
#include <map>
#include <set>
#include <string>

#include "scheduler/core/core.h"
#include "tests/support/catch.h"

namespace gpupool::scheduler {

// Checks that everything allocated belongs to a lease, and that each lease counts once in its tenant's
// usage.
inline void check_books(const Core& core, Time now) {
  pool::PoolSnapshot seen;
  core.view_nodes(*seen.mutable_nodes());
  core.view_leases(*seen.mutable_leases());
  core.view_tenants(*seen.mutable_tenants(), now);
  std::map<std::string, Amount> allocated;  // by GPU
  std::map<std::string, uint64_t> milli;    // by tenant
  std::map<std::string, uint32_t> leases, ending;
  for (const auto& lease : seen.leases()) {
    const auto add = [&](const pool::LeasePart& part) {
      const bool is_suspended =
          lease.has_suspension() && lease.suspension().state() == pool::LeaseStandstill::SUSPENDED;
      REQUIRE((part.unallocated() == is_suspended || lease.ending()));
      if (part.unallocated()) return;
      for (const auto& share : part.shares())
        allocated[share.gpu_uuid()] += {share.compute_milli(), share.memory_bytes()};
    };
    ++(lease.ending() ? ending : leases)[lease.tenant()];
    std::set<std::string> nodes;
    for (const auto& part : lease.parts()) {
      add(part);
      REQUIRE(nodes.insert(part.node()).second);
      for (const auto& share : part.shares())
        milli[lease.tenant()] += part.unallocated() ? 0 : share.compute_milli();
    }
    for (const auto& move : lease.moves()) {
      if (!move.has_part()) continue;
      add(move.part());
      REQUIRE(nodes.insert(move.part().node()).second);
      REQUIRE(!lease.ending());
    }
  }
  for (const auto& node : seen.nodes()) {
    for (const auto& gpu : node.gpus()) {
      const Amount leased{gpu.compute_milli_leased(), gpu.memory_bytes_leased()};
      REQUIRE(allocated[gpu.uuid()] == leased);
    }
  }
  for (const auto& tenant : seen.tenants()) {
    if (ending[tenant.name()] > 0) continue;
    REQUIRE(tenant.leases() == leases[tenant.name()]);
    REQUIRE(tenant.compute_milli() == milli[tenant.name()]);
  }
}

}  // namespace gpupool::scheduler
