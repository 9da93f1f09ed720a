// The cluster's part of the driver: publishes the pool's GPUs as ResourceSlices, and tells claims that can
// never be granted. One process in the cluster; what it does can be repeated, so two do no harm. One thread.
//
// If the API server or the pool's scheduler does not answer, it logs that once and tries again.
#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "client/kubernetes/claim.h"
#include "client/kubernetes/driver.h"
#include "client/kubernetes/events.h"
#include "protocol/control/pool_admin.pb.h"

namespace gpupool::kubernetes {

class Controller {
 public:
  struct Settings {
    DriverSettings driver;
    std::string operator_token_file;  // empty: none
    // Between two looks at the cluster's claims. The API server lists all of them each time, also those of
    // other drivers, and a pod waits much longer than this for what it can never get.
    std::chrono::seconds claims_interval{15};
    std::string pool;          // name of the pool in ResourceSlices
    std::string device_class;  // whose claims are checked
  };
  Controller(Settings settings, const ApiServer& api)
      : settings_(std::move(settings)), api_(api), events_(api, settings_.driver.name) {}

  // Does all that is to be done now.
  void step();

 private:
  Result<pool::ListNodesReply> ask_nodes();
  Result<void> publish(const pool::ListNodesReply& nodes);
  Result<Json> list_slices() const;
  Result<bool> keeps_shared() const;
  void use_shared(bool shared);
  Result<bool> replace(const Json& present, const Json& devices);
  Result<void> check_claims();
  Result<bool> check(const Json& claim);
  const Result<TenantToken>& token_for(const std::string& space);
  void note(const char* what, const Result<void>& result);

  const Settings settings_;
  const ApiServer& api_;
  EventRecorder events_;
  size_t scheduler_ = 0;        // index of the one that answered last
  std::optional<bool> shared_;  // the cluster has consumable capacity; nullopt: not known yet
  Json published_;              // devices
  int steps_ = 0;               // since the slices were compared with the API server's
  std::chrono::steady_clock::time_point next_check_{};
  std::map<std::string, Result<TenantToken>> tokens_;  // by namespace, for one look at the claims
  std::set<std::string> checked_;                      // UIDs of claims
  std::map<std::string, std::string> problems_;        // what was logged last, by what failed
};

}  // namespace gpupool::kubernetes
