#include "server/poold/node/lease_orders.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "common/text/printable.h"

namespace gpupool::server {
namespace {

using std::chrono::milliseconds;

constexpr int kMostEndsAtOnce = 1024, kMostMovesAtOnce = 64;
constexpr size_t kMostSuspensions = 4096;
constexpr milliseconds kLongestGrace{24 * 3'600'000};
constexpr size_t kLongestReason = 1024;

}  // namespace

std::string bounded_reason(const std::string& reason) {
  return printable(reason.substr(0, kLongestReason));
}

int execute_lease_orders(const pool::NodeOrders& orders, Leases& leases) {
  int malformed = 0, count = 0;
  for (const pool::EndLease& end : orders.end()) {
    if (++count > kMostEndsAtOnce) break;  // the scheduler repeats orders until they are answered
    if (end.lease().size() == lease::kIdBytes)
      leases.end(end.lease(), bounded_reason(end.reason()),
                 std::min(milliseconds(end.grace_ms()), kLongestGrace));
    else
      ++malformed;
  }
  count = 0;
  for (const pool::MoveLease& move : orders.move()) {
    if (++count > kMostMovesAtOnce) break;
    if (move.lease().size() == lease::kIdBytes)
      leases.move(move.lease(), bounded_reason(move.address()), move.serial());
    else
      ++malformed;
  }
  std::set<std::string> suspended;
  for (const pool::SuspendLease& order : orders.suspend()) {
    if (suspended.size() >= kMostSuspensions) break;
    if (order.lease().size() != lease::kIdBytes) {
      ++malformed;
      continue;
    }
    suspended.insert(order.lease());
    leases.suspend(order.lease(), order.number(), order.resume());
  }
  if (suspended.size() < kMostSuspensions) leases.keep_suspension_orders(suspended);
  for (const pool::CountersRecorded& recorded : orders.recorded()) leases.counters().recorded(recorded);
  return malformed;
}

}  // namespace gpupool::server
