#include "client/memory/address_offer.h"

namespace gpupool::client {
namespace {

constexpr int kAddressAttempts = 16;

}  // namespace

Result<void> agree_on_addresses(AddressSpace& addresses, wire::AddressRange proposed, uint64_t granularity,
                                const MoveAddresses& move) {
  for (int attempt = 0; attempt < kAddressAttempts && proposed.size != 0; ++attempt) {
    if (addresses.adopt(proposed.base, proposed.size, granularity)) return {};
    // Servers usually propose the same range, so a second server's is probably taken: ask for the next free
    // one.
    uint64_t requested = proposed.base + proposed.size;
    for (int step = 0; step < kAddressAttempts && !AddressSpace::is_free(requested, proposed.size); ++step)
      requested += proposed.size;
    const auto moved = move({requested, proposed.size});
    if (!moved) break;
    proposed = *moved;
  }
  return Error{ErrorCode::unavailable,
               "no range of device addresses is free on both the client and the server; check 'ulimit -v'"};
}

}  // namespace gpupool::client
