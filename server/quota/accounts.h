// poold's accounts, one per tenant that has a session or a quota. One thread.
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
  // A session's place in its tenant's account; given back when this is destroyed, which must be after its worker's end.
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

  // Made when it is first asked for. Fails when this process can open no more files.
  Result<Page> of(const std::string& tenant);
  // Limits of a tenant's account from now on, those of its running sessions too.
  Result<void> set(const std::string& tenant, const Quota& quota);
  // The tenant comes no more; places that are taken stay good.
  void drop(const std::string& tenant) { entries_.erase(tenant); }
  // ErrorCode::limit: the tenant has kMostSessionsOfTenant already.
  Result<std::unique_ptr<Place>> take(const std::string& tenant);

 private:
  struct Entry {
    Page account;
    std::shared_ptr<std::vector<bool>> taken;
  };
  Result<Entry> entry(const std::string& tenant);
  std::map<std::string, Entry> entries_;
};

}  // namespace gpupool::quota
