#include "client/kubernetes/events.h"

#include <atomic>
#include <chrono>
#include <ctime>

#include "common/log/log.h"
#include "common/text/printable.h"

namespace gpupool::kubernetes {
namespace {

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Returns a suffix that no other event of the claim has.
std::string unique_suffix() {
  static std::atomic<uint32_t> count;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(now).count()) + "." +
         std::to_string(count++);
}

}  // namespace

Json event_of(const ClaimName& claim, EventType type, const std::string& reason, const std::string& text,
              const std::string& component, const std::string& now) {
  constexpr size_t kLongestName = 200;
  return {
      {"apiVersion", "v1"},
      {"kind", "Event"},
      {"metadata",
       {{"name", claim.name.substr(0, kLongestName) + "." + unique_suffix()}, {"namespace", claim.space}}},
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

void report(const ApiServer& api, const ClaimName& claim, EventType type, const std::string& reason,
            const std::string& text, const std::string& component) {
  log::info("claim", {{"claim", text_of(claim)}, {"event", reason}, {"message", text}});
  const Json event = event_of(claim, type, reason, text, component, time_text());
  const auto reply = api.send("POST", "/api/v1/namespaces/" + escaped(claim.space) + "/events", event);
  if (reply && reply->succeeded()) return;
  log::warning("event_not_created",
               {{"claim", text_of(claim)}, {"error", reply ? reply->reason() : reply.error().message}});
}

}  // namespace gpupool::kubernetes
