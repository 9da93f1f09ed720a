// Device addresses with memory behind them, as far as the client knows.
#pragma once
#include "client/mirrors.h"
#include "client/session.h"

namespace gpupool::client {

// Inside one allocation, or in addresses that the program reserved and maps itself.
inline bool is_mapped(Session& session, uint64_t address, uint64_t bytes) {
  if (bytes == 0) return true;
  if (const auto found = session.addresses().find(address)) {
    if (bytes <= found->size - (address - found->address)) return true;
    // Beyond a mapping of the program's own there may be the next one.
    return found->foreign && session.addresses().is_reserved(address, bytes);
  }
  if (session.addresses().is_reserved(address, bytes)) return true;
  const auto both = mirrors().find(address);  // pinned memory that kernels reach
  return both && both->session == &session && bytes <= both->bytes - (address - both->address);
}

}  // namespace gpupool::client
