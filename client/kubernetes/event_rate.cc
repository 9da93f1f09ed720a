#include "client/kubernetes/event_rate.h"

#include <algorithm>

namespace gpupool::kubernetes {
namespace {

std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit || !out.ends_with('0')) out += digit ? '0' : c;
  }
  return out;
}

}  // namespace

EventRate::Answer EventRate::ask(const std::string& uid, const std::string& reason, const std::string& text,
                                 Clock::time_point now) {
  if (!claims_.contains(uid)) make_room();
  Claim& claim = claims_[uid];
  claim.used = now;
  Written& event = claim.events[reason];
  const std::string plain = without_numbers(text);
  const bool changed = claim.latest != reason || event.text != plain;
  const Clock::duration between = changed ? Clock::duration(kBetweenChanges) : kBetweenRepeats;
  if (event.count != 0 && now - event.at < between) return changed ? Answer::later : Answer::known;
  claim.latest = reason;
  event.text = plain;
  event.at = now;
  ++event.count;
  return Answer::write;
}

int EventRate::count(const std::string& uid, const std::string& reason) const {
  const auto claim = claims_.find(uid);
  if (claim == claims_.end()) return 0;
  const auto event = claim->second.events.find(reason);
  return event == claim->second.events.end() ? 0 : event->second.count;
}

void EventRate::forget_text(const std::string& uid, const std::string& reason) {
  const auto claim = claims_.find(uid);
  if (claim != claims_.end()) claim->second.events[reason].text.clear();
}

void EventRate::make_room() {
  if (claims_.size() < kMostClaims) return;
  claims_.erase(std::min_element(claims_.begin(), claims_.end(), [](const auto& one, const auto& other) {
    return one.second.used < other.second.used;
  }));
}

}  // namespace gpupool::kubernetes
