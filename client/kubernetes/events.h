// Events on ResourceClaims, which `kubectl describe resourceclaim` shows. An event that the API server does
// not take is lost, unless it is reported again.
#pragma once
#include <mutex>
#include <string>

#include "client/kubernetes/api_server.h"
#include "client/kubernetes/claim.h"
#include "client/kubernetes/event_rate.h"

namespace gpupool::kubernetes {

enum class EventType { normal, warning };

// Returns an event (core/v1), whose name is that of the claim's earlier events of this reason. `now`: RFC
// 3339.
Json event_of(const ClaimName& claim, EventType type, const std::string& reason, const std::string& text,
              const std::string& component, const std::string& now);

// Owned by Claims and by Controller; any thread.
class EventRecorder {
 public:
  EventRecorder(const ApiServer& api, std::string component) : api_(api), component_(std::move(component)) {}
  // Creates or updates the claim's event of this reason and logs it, unless it says this already. Returns
  // false if it was written too recently: report it again, if it is still so.
  bool report(const ClaimName& claim, EventType type, const std::string& reason, const std::string& text);

 private:
  Result<ApiServer::Reply> write(const std::string& space, const Json& event) const;

  const ApiServer& api_;
  const std::string component_;
  std::mutex mutex_;
  EventRate rate_;
};

}  // namespace gpupool::kubernetes
