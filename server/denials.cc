#include "server/denials.h"

#include <algorithm>

namespace gpupool::server {
namespace {

constexpr double kMostAnswers = 10;  // at once
constexpr double kAnswersPerSecond = 1;

}  // namespace

bool Denials::note(const std::string& address, Clock::time_point now) {
  const auto allowed = [now](const Allowance& allowance) {
    const double passed = std::chrono::duration<double>(now - allowance.since).count();
    return std::min(kMostAnswers, allowance.answers + passed * kAnswersPerSecond);
  };
  if (by_address_.size() >= kMostAddresses) {
    std::erase_if(by_address_, [&](const auto& entry) { return allowed(entry.second) >= kMostAnswers; });
    if (by_address_.size() >= kMostAddresses) by_address_.clear();
  }
  const size_t port = address.ends_with(']') ? std::string::npos : address.rfind(':');
  Allowance& allowance = by_address_.try_emplace(address.substr(0, port), Allowance{kMostAnswers, now}).first->second;
  allowance = {allowed(allowance), now};
  if (allowance.answers < 1) return false;
  allowance.answers -= 1;
  return true;
}

}  // namespace gpupool::server
