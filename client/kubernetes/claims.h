// The claims of pods on this node: prepares them, holds a lease for each, and gives containers its
// environment by a CDI specification.
//
// Owned by the node's plugin. prepare() and unprepare() are called by gRPC's threads, keep() by the main
// thread. State that must outlive the process is in ClaimStore: adopt() continues with it. When the process
// ends, leases stay with the scheduler for the policy `hold`.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/kubernetes/claim_lease.h"
#include "client/kubernetes/claim_store.h"
#include "client/kubernetes/driver.h"
#include "client/kubernetes/events.h"
#include "client/run/environment.h"

namespace gpupool::kubernetes {

class Claims {
 public:
  struct Settings {
    DriverSettings driver;
    std::string node;
    std::chrono::seconds prepare_wait{20};     // the kubelet gives a call 45 s
    std::chrono::seconds unused_interval{30};  // between two looks at whether claims are still used
    std::string cdi_file;
    run::Installation installation;  // paths of the host
    std::string container_tls_ca;    // of poolds; a path of the host
  };
  struct Prepared {
    std::vector<AllocatedDevice> devices;
    std::string cdi_device;
  };
  Claims(Settings settings, const ApiServer& api, ClaimStore store);

  // Holds the leases of claims that a process before this one has left.
  void adopt();
  // Requests the lease of a claim, unless that has been done. Returns at once.
  Result<void> begin(const ClaimName& name);
  // Waits for the lease, until the deadline.
  Result<Prepared> finish(const ClaimName& name, std::chrono::steady_clock::time_point deadline);
  // Returns the lease. Succeeds if there is none.
  Result<void> unprepare(const ClaimName& name);
  // Reports why claims wait, and returns leases of claims that are gone. Call it about every second.
  void keep();
  std::chrono::seconds prepare_wait() const { return settings_.prepare_wait; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    StoredClaim claim;
    std::unique_ptr<ClaimLease> lease;
    bool releasing = false;  // now
    bool released = false;   // the lease, but files of the claim could not be removed
    // Noted by keep():
    bool waited = false;  // and an event has said so
    int unused = 0;       // how often in a row the claim was gone, or no pod on this node had it
  };

  Result<StoredClaim> read_claim(const ClaimName& name) const;
  Result<std::vector<std::string>> models_of(const Allocation& allocation) const;
  Result<void> check_node(const Json& claim) const;
  std::string node_of_pod(const std::string& space, const Json& consumer) const;
  // `gone`: the claim was deleted. `unanswered`: the API server cannot be reached.
  enum class Use { here, elsewhere, gone, unknown, unanswered };
  Use use_of(const ClaimName& name) const;
  Result<std::unique_ptr<ClaimLease>> open_lease(const StoredClaim& claim) const;
  std::shared_ptr<Held> find(const std::string& uid) const;
  bool is_released(const Held& held) const;
  Result<void> describe(const StoredClaim& claim) const;
  Result<void> release(const std::string& uid);
  void report_state(Held& held);
  void release_unused();

  const Settings settings_;
  const ApiServer& api_;
  const ClaimStore store_;
  EventRecorder events_;
  Clock::time_point next_check_;

  mutable std::mutex mutex_;  // for the map and for Held, but not for Held::lease and what keep() notes
  std::map<std::string, std::shared_ptr<Held>> held_;  // by uid
};

}  // namespace gpupool::kubernetes
