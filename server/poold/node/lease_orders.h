// Executes what a scheduler orders for leases. Used by Agent, on poold's thread. A scheduler's orders are
// untrusted: their number, and the texts and times in them, are bounded.
#pragma once
#include "protocol/control/pool.pb.h"
#include "server/poold/node/leases.h"

namespace gpupool::server {

// Cuts a scheduler's text, and makes it printable.
std::string bounded_reason(const std::string& reason);

// Returns the number of orders that were ignored because they have no lease ID.
int execute_lease_orders(const pool::NodeOrders& orders, Leases& leases);

}  // namespace gpupool::server
