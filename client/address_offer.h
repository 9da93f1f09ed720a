// The range of device addresses that a client and its server agree on, when a session begins. One thread; blocks where `move` does.
#pragma once
#include <functional>
#include <optional>

#include "client/address_space.h"
#include "protocol/wire/commands.h"
#include "protocol/wire/result.h"

namespace gpupool::client {

// Asks the server for another range, at the wished address if it can. nullopt: the call failed, or the answer is malformed.
using MoveAddresses = std::function<std::optional<wire::AddressRange>(const wire::MoveAddresses& wish)>;

// Adopts the range that the server has proposed, or the first one that is free here, too, of those that it proposes afterwards.
Result<void> agree_on_addresses(AddressSpace& addresses, wire::AddressRange proposed, uint64_t granularity, const MoveAddresses& move);

}  // namespace gpupool::client
