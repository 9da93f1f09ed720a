// The cluster's part of the driver: publishes the pool's GPUs as ResourceSlices, and tells claims that can
// never be granted. One process in the cluster; what it does can be repeated, so two do no harm. One thread.
//
// If the API server or the pool's scheduler does not answer, it logs that once and tries again.
#pragma once
#include <map>
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
    std::string pool;                 // name of the pool in ResourceSlices
    std::string device_class;         // whose claims are checked
  };
  Controller(Settings settings, const ApiServer& api)
      : settings_(std::move(settings)), api_(api), events_(api, settings_.driver.name) {}

  // Does all that is to be done now.
  void step();

 private:
  Result<pool::ListNodesReply> ask_nodes();
  Result<void> publish(const pool::ListNodesReply& nodes);
  Result<Json> list_slices() const;
  Result<bool> replace(const Json& present, const Json& devices);
  Result<void> check_claims();
  bool check(const Json& claim);
  void note(const char* what, const Result<void>& result);

  const Settings settings_;
  const ApiServer& api_;
  EventRecorder events_;
  size_t scheduler_ = 0;                         // index of the one that answered last
  bool shared_ = true;                           // the cluster has consumable capacity, as far as is known
  Json published_;                               // devices
  int steps_ = 0;                                // since the slices were compared with the API server's
  std::set<std::string> checked_;                // UIDs of claims
  std::map<std::string, std::string> problems_;  // what was logged last, by what failed
};

}  // namespace gpupool::kubernetes
