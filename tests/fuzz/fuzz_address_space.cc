// Fuzzes the client's device addresses: any calls in any order, in a range from a hostile server that also
// says which frees have taken effect. Allocations, spans, host places and reservations must not overlap and
// must be in the range.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "client/memory/address_space.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

using namespace gpupool;
using client::AddressSpace;
using client::Allocation;
using fuzz::require;

namespace {

// Above AddressSanitizer's shadow and below where the system places mappings.
constexpr uint64_t kBase = uint64_t{1} << 45;

enum class Kind { allocation, span, host, reservation };
struct Live {
  Kind kind = Kind::allocation;
  uint64_t size = 0;
  uint64_t context = 0;
};

class Game {
 public:
  explicit Game(fuzz::Input input) : input_(input) {}

  // Unmaps the addresses for the next input.
  ~Game() {
    if (space_.size() != 0)
      ::munmap(reinterpret_cast<void*>(static_cast<uintptr_t>(space_.base())), space_.size());
  }

  void play() {
    const uint64_t base = input_.below(2) == 0 ? kBase : input_.get<uint64_t>();
    const uint64_t size = input_.below(2) == 0 ? uint64_t{1} << 30 : input_.get<uint64_t>();
    const uint64_t granularity = input_.below(4) == 0 ? input_.get<uint64_t>() : uint64_t{2} << 20;
    if (!AddressSpace::is_free(base, size) || !space_.adopt(base, size, granularity)) return;
    for (int steps = 0; !input_.empty() && steps < 500; ++steps) step();
  }

 private:
  void step() {
    switch (input_.below(16)) {
      case 0:
      case 1:
      case 2: return allocate();
      case 3:
      case 4: return release();
      case 5: return space_.retired(input_.below(4) == 0 ? input_.get<uint64_t>() : sequence_);
      case 6: return reserve();
      case 7: return look();
      case 8: return reserve_span();
      case 9: return return_span();
      case 10: return reserve_host();
      case 11: return unreserve_host();
      case 12: return take_idle();
      case 13: return use_pool();
      case 14: return use_foreign();
      default: return input_.below(2) == 0 ? unreserve() : forget_context();
    }
  }
  uint64_t bytes() {
    return input_.below(8) == 0 ? input_.get<uint64_t>()
                                : uint64_t{input_.get<uint32_t>()} >> input_.below(24);
  }
  Allocation about(uint64_t size) {
    Allocation made;
    made.size = size;
    made.context = 1 + input_.below(2);
    const uint32_t which = input_.below(4);
    made.managed = which == 1;
    made.device = which == 2 ? reinterpret_cast<client::Device*>(this) : nullptr;
    return made;
  }

  void note(Kind kind, uint64_t address, uint64_t size, uint64_t context) {
    require(address >= space_.base() && size <= space_.size() &&
            address - space_.base() <= space_.size() - size);
    size = std::max<uint64_t>(size, 1);
    const auto after = live_.lower_bound(address);
    require(after == live_.end() || after->first >= address + size);
    require(after == live_.begin() || std::prev(after)->first + std::prev(after)->second.size <= address);
    live_[address] = {kind, size, context};
  }
  // Returns one of the kind; the end if there is none.
  std::map<uint64_t, Live>::iterator some(Kind kind) {
    if (live_.empty()) return live_.end();
    auto one = std::next(live_.begin(), input_.below(static_cast<uint32_t>(live_.size())));
    for (size_t i = 0; i < live_.size(); ++i) {
      if (one->second.kind == kind) return one;
      if (++one == live_.end()) one = live_.begin();
    }
    return live_.end();
  }

  void allocate() {
    const uint64_t wanted = bytes();
    const Allocation made = about(wanted);
    const auto place = space_.allocate(wanted, uint64_t{1} << input_.below(22), made);
    if (!place) return;
    if (place->map_size != 0 && input_.below(8) == 0)
      return space_.abandon(place->address);  // as if the mapping had failed
    if (place->map_size != 0) space_.mapped(*place);
    note(Kind::allocation, place->address, wanted, made.context);
    require(space_.knows(place->address) && space_.overlaps(place->address, 1));
  }
  void release() {
    const auto one = some(Kind::allocation);
    if (one == live_.end()) return;
    const auto found = space_.find(one->first);
    require(found && found->address == one->first && found->context == one->second.context);
    const auto released = space_.release(one->first, input_.below(2) ? 0 : AddressSpace::kMostIdle);
    require(released.has_value());
    space_.retire_after(*released, ++sequence_);
    live_.erase(one);
  }

  void reserve() {
    const uint64_t wanted = bytes();
    const auto place = space_.reserve(wanted, uint64_t{1} << input_.below(30),
                                      input_.below(2) ? 0 : space_.base() + input_.get<uint32_t>());
    if (place && wanted != 0) note(Kind::reservation, *place, wanted, 0);
  }
  void unreserve() {
    const auto one = some(Kind::reservation);
    if (one == live_.end()) return;
    const auto [address, live] = *one;
    require(space_.is_reserved(address, live.size) && !space_.is_reserved(address, live.size + 1) &&
            !space_.unreserve(address, live.size + 1));
    require(space_.unreserve(address, live.size) && !space_.is_reserved(address, live.size));
    live_.erase(one);
  }

  void reserve_span() {
    const uint64_t wanted = bytes();
    const Allocation made = about(wanted);
    const auto place = space_.reserve_span(wanted, made);
    if (!place) return;
    if (place->map_size != 0 && input_.below(4) == 0) return space_.abandon_span(place->address);
    space_.mapped(*place);
    note(Kind::span, place->address, wanted, made.context);
  }
  void return_span() {
    const auto one = some(Kind::span);
    if (one == live_.end()) return;
    const auto released = space_.return_span(one->first, input_.below(2) ? 0 : AddressSpace::kMostIdle);
    require(released.address == one->first);
    if (released.unmap_size != 0) space_.retire_after(released, ++sequence_);
    live_.erase(one);
  }

  void reserve_host() {
    const uint64_t wanted = bytes();
    const auto place = space_.reserve_host(wanted);
    if (!place) return;
    note(Kind::host, *place, wanted, 0);
    require(space_.has_hosts() && space_.host_place(*place + wanted - 1) == *place &&
            space_.may_be_host(*place) && !space_.knows(*place));
  }
  void unreserve_host() {
    const auto one = some(Kind::host);
    if (one == live_.end()) return;
    space_.unreserve_host(one->first, input_.below(2) == 0 ? 0 : ++sequence_);
    require(!space_.host_place(one->first));
    live_.erase(one);
  }

  void take_idle() {
    const auto* const device = input_.below(2) == 0 ? nullptr : reinterpret_cast<client::Device*>(this);
    uint64_t sum = 0;
    const uint64_t idle = space_.idle_bytes(device);
    for (const auto& released : space_.take_idle(device)) {
      sum += released.unmap_size;
      space_.retire_after(released, ++sequence_);
    }
    require(sum >= idle && space_.idle_bytes(device) == 0);
  }

  // A pool's allocation at the start of its span.
  void use_pool() {
    const auto one = some(Kind::span);
    if (one == live_.end()) return;
    Allocation made = about(one->second.size);
    made.address = one->first;
    made.context = one->second.context;
    made.pool_memory = reinterpret_cast<client::PoolMemory*>(this);
    space_.add_pooled(made);
    require(!space_.release(made.address));
    const auto taken = space_.take_pooled(made.address);
    require(taken && taken->size == made.size && !space_.take_pooled(made.address));
  }

  // Memory outside the range, as a module's variable.
  void use_foreign() {
    Allocation made = about(1 + input_.get<uint8_t>());
    made.address = input_.get<uint64_t>();
    if (space_.in_range(made.address) || made.address + made.size < made.address) return;
    space_.add_foreign(made);
    require(space_.knows(made.address) && space_.overlaps(made.address, 1) && !space_.release(made.address));
    space_.set_sync_memops(made.address, true);
    require(space_.find(made.address)->sync_memops);
    if (input_.below(2) == 0) space_.forget_foreign(made.address);
  }

  void forget_context() {
    const uint64_t context = 1 + input_.below(2);
    space_.forget_context(context, ++sequence_);
    std::erase_if(live_, [&](const auto& one) {
      return one.second.context == context &&
             (one.second.kind == Kind::allocation || one.second.kind == Kind::span);
    });
  }

  void look() {
    static_cast<void>(space_.find(input_.get<uint64_t>()));
    static_cast<void>(space_.overlaps(space_.base() + input_.get<uint32_t>(), input_.get<uint64_t>()));
  }

  fuzz::Input input_;
  AddressSpace space_;
  std::map<uint64_t, Live> live_;
  uint64_t sequence_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Game({data, size}).play();
  return 0;
}
