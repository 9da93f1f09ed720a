// poold's accounts, one for each tenant that has a session or a quota. WorkerPool uses it on poold's thread.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/quota/account.h"
#include "server/quota/shared_page.h"

namespace gpupool::quota {

class Accounts {
 public:
  using Page = std::shared_ptr<SharedPage<Account>>;
  // A session's slot in its tenant's account. The destructor clears the slot, so it must come after the
  // worker's end.
  class Place {
   public:
    Place(std::shared_ptr<std::vector<bool>> taken, Page account, uint32_t slot)
        : taken_(std::move(taken)), account_(std::move(account)), slot_(slot) {}
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    int descriptor() const { return account_->descriptor(); }
    uint32_t slot() const { return slot_; }

   private:
    std::shared_ptr<std::vector<bool>> taken_;
    Page account_;
    uint32_t slot_;
  };

  // Returns the tenant's account, made on first use. ErrorCode::unavailable: no memory file can be made.
  Result<Page> of(const std::string& tenant);
  // Sets the limits of a tenant's account, for running sessions too.
  Result<void> set(const std::string& tenant, const Quota& quota);
  // Forgets the tenant; existing Place objects stay valid.
  void drop(const std::string& tenant) { entries_.erase(tenant); }
  // Call when all slots are restored.
  void end_restoring() { restored_.clear(); }
  // Takes a free slot. ErrorCode::limit: the tenant has kMaxSessionsPerTenant sessions.
  Result<std::unique_ptr<Place>> take(const std::string& tenant);
  // Takes over a slot from this process's previous program (server/poold/upgrade), with the descriptor of the
  // tenant's account. Slots with the same descriptor share it. ErrorCode::malformed: it is no account, or the
  // slot does not exist or is in use. Call set() afterwards.
  // `current`: new sessions of the tenant get this account, too.
  Result<std::unique_ptr<Place>> restore(const std::string& tenant, int descriptor, uint32_t slot,
                                         bool current);
  // False for an account of sessions of an earlier tenant of this name.
  bool is_current(const std::string& tenant, int descriptor) const {
    const auto found = entries_.find(tenant);
    return found != entries_.end() && found->second.account->descriptor() == descriptor;
  }

 private:
  struct Entry {
    Page account;
    std::shared_ptr<std::vector<bool>> taken;
  };
  Result<Entry> entry(const std::string& tenant);
  std::map<std::string, Entry> entries_;
  std::map<int, Entry> restored_;  // by descriptor
};

}  // namespace gpupool::quota
