// Events on ResourceClaims, which `kubectl describe resourceclaim` shows. Any thread; an event that the API
// server does not take is lost.
#pragma once
#include <string>

#include "client/kubernetes/api_server.h"
#include "client/kubernetes/claim.h"

namespace gpupool::kubernetes {

enum class EventType { normal, warning };

// Returns an event (core/v1). `now`: RFC 3339.
Json event_of(const ClaimName& claim, EventType type, const std::string& reason, const std::string& text,
              const std::string& component, const std::string& now);
// Creates the event, and logs it.
void report(const ApiServer& api, const ClaimName& claim, EventType type, const std::string& reason,
            const std::string& text, const std::string& component);

}  // namespace gpupool::kubernetes
