#include "client/kubernetes/events.h"

#include <ctime>

#include "common/log/log.h"
#include "common/text/printable.h"
#include "common/token/token.h"

namespace gpupool::kubernetes {
namespace {

constexpr int kConflict = 409;  // status of HTTP

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Returns a name that is the same for all events of a claim with this reason, also of a restarted process.
std::string name_of_event(const ClaimName& claim, const std::string& reason) {
  constexpr size_t kLongestName = 200, kDigits = 16;
  std::string name = claim.name.substr(0, kLongestName);
  while (name.ends_with("-") || name.ends_with(".")) name.pop_back();  // where it was cut
  const std::string hash = hash_text(hash_token(claim.uid + " " + reason));
  return name + "." + hash.substr(hash.find(':') + 1, kDigits);
}

}  // namespace

Json event_of(const ClaimName& claim, EventType type, const std::string& reason, const std::string& text,
              const std::string& component, const std::string& now) {
  return {{"apiVersion", "v1"},
          {"kind", "Event"},
          {"metadata", {{"name", name_of_event(claim, reason)}, {"namespace", claim.space}}},
          {"involvedObject",
           {{"apiVersion", "resource.k8s.io/v1"},
            {"kind", "ResourceClaim"},
            {"name", claim.name},
            {"namespace", claim.space},
            {"uid", claim.uid}}},
          {"type", type == EventType::normal ? "Normal" : "Warning"},
          {"reason", reason},
          {"message", printable_message(text)},
          {"source", {{"component", component}}},
          {"reportingComponent", component},
          {"reportingInstance", component},
          {"firstTimestamp", now},
          {"lastTimestamp", now},
          {"count", 1}};
}

bool EventRecorder::report(const ClaimName& claim, EventType type, const std::string& reason,
                           const std::string& text) {
  Json event = event_of(claim, type, reason, text, component_, time_text());
  {
    const std::lock_guard lock(mutex_);
    const auto answer = rate_.ask(claim.uid, reason, text, EventRate::Clock::now());
    if (answer != EventRate::Answer::write) return answer == EventRate::Answer::known;
    event["count"] = rate_.count(claim.uid, reason);
  }
  log::info("claim", {{"claim", text_of(claim)}, {"event", reason}, {"message", text}});
  const auto reply = write(claim.space, event);
  if (reply && reply->succeeded()) return true;
  log::warning("event_not_written",
               {{"claim", text_of(claim)}, {"error", reply ? reply->reason() : reply.error().message}});
  const std::lock_guard lock(mutex_);
  rate_.forget_text(claim.uid, reason);
  return true;
}

// Updates the event, or creates it if the API server does not have it (yet, or any more).
Result<ApiServer::Reply> EventRecorder::write(const std::string& space, const Json& event) const {
  const std::string all = "/api/v1/namespaces/" + escaped(space) + "/events";
  const std::string name = text_member(event, {"metadata", "name"});
  const auto update = [&] {
    Json change;
    for (const char* const part : {"type", "message", "lastTimestamp", "count"}) change[part] = event[part];
    return api_.send("PATCH", all + "/" + escaped(name), change);
  };
  if (event["count"] == 1) {
    auto created = api_.send("POST", all, event);
    const bool exists = created && created->status == kConflict;  // written by a process before this one
    return exists ? update() : created;
  }
  auto updated = update();
  const bool expired = updated && updated->says_missing("events", name);
  return expired ? api_.send("POST", all, event) : updated;
}

}  // namespace gpupool::kubernetes
