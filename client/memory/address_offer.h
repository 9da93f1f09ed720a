// Agrees with a server on the range of device addresses for a session. Called once per session, by the thread
// that connects; blocks while `move` does. Fails with ErrorCode::unavailable if no range is free on both
// sides.
#pragma once
#include <functional>
#include <optional>

#include "client/memory/address_space.h"
#include "common/result.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {

// Asks the server for another range, preferably at the given address. nullopt: the call failed, or the reply
// is malformed.
using MoveAddresses = std::function<std::optional<wire::AddressRange>(const wire::MoveAddresses& request)>;

// Adopts the proposed range or, if it is not free in this process, asks the server for up to 16 others.
Result<void> agree_on_addresses(AddressSpace& addresses, wire::AddressRange proposed, uint64_t granularity,
                                const MoveAddresses& move);

}  // namespace gpupool::client
