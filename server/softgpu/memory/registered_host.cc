// Host memory outside the reserved range that kernels may access because the program registered it.
// Thread-safe.
#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {
namespace {

struct Registration {
  uint64_t size;
  bool read_only;
};
struct Registrations {
  std::shared_mutex mutex;
  std::map<uint64_t, Registration> pieces;  // by address
  std::atomic<size_t> count{0};             // avoids the mutex in the usual case, no registrations
};

Registrations& registrations() {
  static auto* instance = new Registrations;
  return *instance;
}

}  // namespace

bool register_host(uint64_t address, uint64_t size, bool read_only) {
  if (address == 0 || size == 0 || size > UINT64_MAX - address) return false;
  if (address < kRangeBase + kRangeSize && kRangeBase < address + size) return false;
  auto& r = registrations();
  std::unique_lock lock(r.mutex);
  auto next = r.pieces.lower_bound(address);
  if (next != r.pieces.end() && next->first < address + size) return false;
  if (next != r.pieces.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second.size > address) return false;
  }
  r.pieces.emplace(address, Registration{size, read_only});
  r.count = r.pieces.size();
  return true;
}

bool unregister_host(uint64_t address) {
  auto& r = registrations();
  std::unique_lock lock(r.mutex);
  const bool found = r.pieces.erase(address) != 0;
  r.count = r.pieces.size();
  return found;
}

bool is_registered_host(uint64_t address, uint64_t size, bool for_store) {
  auto& r = registrations();
  if (r.count.load(std::memory_order_acquire) == 0) return false;
  std::shared_lock lock(r.mutex);
  auto piece = r.pieces.upper_bound(address);
  if (piece == r.pieces.begin()) return false;
  --piece;
  const uint64_t offset = address - piece->first;
  if (offset >= piece->second.size || size > piece->second.size - offset) return false;
  return !for_store || !piece->second.read_only;
}

}  // namespace gpupool::softgpu
