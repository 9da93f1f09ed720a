// Fuzzes the client's device addresses: any calls in any order, in a range from a hostile server. Allocations
// must not overlap and must be in the range.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>

#include "client/memory/address_space.h"
#include "tests/fuzz/input.h"

using namespace gpupool;
using client::AddressSpace;
using client::Allocation;

namespace {

class Game {
 public:
  explicit Game(fuzz::Input input) : input_(input) {}

  // Unmaps the addresses for the next input.
  ~Game() {
    if (space_.size() != 0)
      ::munmap(reinterpret_cast<void*>(static_cast<uintptr_t>(space_.base())), space_.size());
  }

  void play() {
    const uint64_t base = input_.below(2) == 0 ? uint64_t{1} << 44 : input_.get<uint64_t>();
    const uint64_t size = input_.below(2) == 0 ? uint64_t{1} << 30 : input_.get<uint64_t>();
    const uint64_t granularity = input_.below(4) == 0 ? input_.get<uint64_t>() : uint64_t{2} << 20;
    if (!AddressSpace::is_free(base, size) || !space_.adopt(base, size, granularity)) return;
    for (int steps = 0; !input_.empty() && steps < 500; ++steps) step();
  }

 private:
  void step() {
    switch (input_.below(8)) {
      case 0:
      case 1:
      case 2: return allocate();
      case 3:
      case 4: return release();
      case 5: return space_.retired(input_.below(4) == 0 ? input_.get<uint64_t>() : sequence_);
      case 6: {
        const auto place = space_.reserve(bytes(), uint64_t{1} << input_.below(30),
                                          input_.below(2) ? 0 : space_.base() + input_.get<uint32_t>());
        if (place && (*place < space_.base() || *place - space_.base() >= space_.size())) std::abort();
        return;
      }
      default:
        static_cast<void>(space_.find(input_.get<uint64_t>()));
        static_cast<void>(space_.overlaps(space_.base() + input_.get<uint32_t>(), input_.get<uint64_t>()));
    }
  }
  uint64_t bytes() {
    return input_.below(8) == 0 ? input_.get<uint64_t>()
                                : uint64_t{input_.get<uint32_t>()} >> input_.below(24);
  }

  void allocate() {
    const uint64_t wanted = bytes();
    Allocation about;
    about.size = wanted;
    about.context = 1 + input_.below(2);
    const auto place = space_.allocate(wanted, uint64_t{1} << input_.below(22), about);
    if (!place) return;
    if (place->map_size != 0 && input_.below(8) == 0)
      return space_.abandon(place->address);  // as if the mapping had failed
    if (place->map_size != 0) space_.mapped(*place);
    if (place->address < space_.base() || wanted > space_.size() ||
        place->address - space_.base() > space_.size() - wanted)
      std::abort();
    const auto after = live_.lower_bound(place->address);
    if (after != live_.end() && after->first < place->address + std::max<uint64_t>(wanted, 1)) std::abort();
    if (after != live_.begin() && std::prev(after)->first + std::prev(after)->second > place->address)
      std::abort();
    live_[place->address] = std::max<uint64_t>(wanted, 1);
  }
  void release() {
    if (live_.empty()) return;
    auto one = live_.begin();
    std::advance(one, input_.below(static_cast<uint32_t>(live_.size())));
    const auto released = space_.release(one->first, input_.below(2) ? 0 : AddressSpace::kMostIdle);
    if (!released) std::abort();
    space_.retire_after(*released, ++sequence_);
    live_.erase(one);
  }

  fuzz::Input input_;
  AddressSpace space_;
  std::map<uint64_t, uint64_t> live_;  // size in bytes by address
  uint64_t sequence_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Game({data, size}).play();
  return 0;
}
