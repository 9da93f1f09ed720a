// The claims that are prepared on this node, in files, so that a restarted plugin holds their leases again
// without asking the API server. Used by Claims; it alone writes the folder.
//
// FOLDER/claims/UID/claim.json has the claim with its token; FOLDER/claims/UID/lease is mounted in
// containers. FOLDER has mode 0700, so that only root reaches the rest.
#pragma once
#include <string>
#include <vector>

#include "client/kubernetes/claim.h"
#include "common/result.h"

namespace gpupool::kubernetes {

struct StoredClaim {
  ClaimName name;
  std::vector<AllocatedDevice> devices;
  LeaseTerms lease;
  std::string token;      // the tenant's
  bool own_token = true;  // from the namespace's Secret, else the default token
  bool prepared = false;  // the lease was granted, and the kubelet was told
};

class ClaimStore {
 public:
  // Creates the folder. ErrorCode::unavailable: it cannot be used.
  static Result<ClaimStore> open(const std::string& folder);

  // Reads all claims. Files that cannot be read are left out; `report` gets a line for each.
  std::vector<StoredClaim> read_all(std::vector<std::string>& report) const;
  Result<void> put(const StoredClaim& claim) const;
  Result<void> remove(const std::string& uid) const;
  // Returns the folder of the lease file, which is mounted in containers.
  std::string lease_folder(const std::string& uid) const;

 private:
  explicit ClaimStore(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;  // FOLDER/claims
};

// Returns false for a text that is no name of a folder. Kubernetes' UIDs are 36 letters, digits and '-'.
bool is_uid(const std::string& text);

}  // namespace gpupool::kubernetes
