// Checks whether device addresses have memory behind them, as far as the client knows. Used by copies, fills
// and other calls that take addresses. Any thread.
#pragma once
#include "client/memory/mirrors.h"
#include "client/session/session.h"

namespace gpupool::client {

// True if the range lies inside one allocation, in addresses that the program has reserved and maps itself,
// or in mirrored pinned memory.
inline bool is_device_range_mapped(Session& session, uint64_t address, uint64_t bytes) {
  if (bytes == 0) return true;
  if (const auto found = session.addresses().find(address)) {
    if (bytes <= found->size - (address - found->address)) return true;
    // Behind one mapping of the program another one may follow.
    return found->foreign && session.addresses().is_reserved(address, bytes);
  }
  if (session.addresses().is_reserved(address, bytes)) return true;
  const auto both = mirrors().find(address);  // pinned memory that kernels can access
  return both && both->session == &session && bytes <= both->bytes - (address - both->address);
}

}  // namespace gpupool::client
