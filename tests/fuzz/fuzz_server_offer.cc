// Fuzzes the path from a server's HelloReply to a session's devices and address range: the reply,
// CUDA_VISIBLE_DEVICES, and the server's answers if its range is not free here. The input has the program's
// list, the answers, and the reply.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>

#include "client/memory/address_offer.h"
#include "client/process/log.h"
#include "client/session/devices.h"
#include "client/session/session.h"
#include "protocol/control/hello_codec.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

// Silences the log: invalid entries of the list are expected.
namespace gpupool::client {
void log_error(const char*, ...) {}
void log_debug(const char*, ...) {}
}  // namespace gpupool::client

using namespace gpupool;
using fuzz::require;

namespace {

// All zero: only server_id(), which is constant, is called on it.
client::Session& no_session() {
  alignas(client::Session) static std::byte storage[sizeof(client::Session)];
  return *reinterpret_cast<client::Session*>(storage);
}

void check_devices(const hello::HelloReply& reply, const std::string* visible) {
  std::vector<client::OfferedDevice> offered;
  for (size_t i = 0; i < reply.devices.size(); ++i)
    offered.push_back({&no_session(), static_cast<int>(i), reply.devices[i]});
  const auto devices = client::make_devices(std::move(offered), visible ? visible->c_str() : nullptr);
  require(devices.size() <= reply.devices.size() && (visible || devices.size() == reply.devices.size()));
  for (size_t i = 0; i < devices.size(); ++i) {
    require(devices[i]->ordinal == static_cast<int>(i) && devices[i]->uuid.size() == 16 &&
            devices[i]->granularity != 0);
    for (size_t j = 0; j < i; ++j) require(devices[i]->server_ordinal != devices[j]->server_ordinal);
  }
}

// Allocates several times: all allocations must be in the range and must not overlap.
void use(client::AddressSpace& space, fuzz::Input& input) {
  std::map<uint64_t, uint64_t> taken;
  for (int i = 0; i < 8; ++i) {
    const uint64_t bytes = uint64_t{1} << input.below(40);
    const auto place = space.allocate(bytes, 1, {.size = bytes});
    if (!place) continue;
    space.mapped(*place);
    require(place->address != 0 && place->address >= space.base() &&
            place->address - space.base() <= space.size() - bytes);
    const auto next = taken.lower_bound(place->address);
    require(next == taken.end() || next->first - place->address >= bytes);
    require(next == taken.begin() || place->address - std::prev(next)->first >= std::prev(next)->second);
    taken[place->address] = bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool has_list = input.below(2) == 1;
  const std::string list = input.text();
  const std::string said = input.text();
  fuzz::Input answers(reinterpret_cast<const uint8_t*>(said.data()), said.size());
  const std::string encoded = input.rest();
  const auto reply = hello::decode_hello_reply(encoded);
  if (!reply) return 0;
  // As a C string, the list ends at the first NUL.
  check_devices(*reply, has_list ? &list : nullptr);
  if (reply->devices.empty()) return 0;
  client::AddressSpace space;
  int moves = 0;
  const auto agreed = client::agree_on_addresses(
      space, {reply->addresses.base, reply->addresses.size}, client::granularity_of(reply->devices.front()),
      [&](const wire::MoveAddresses&) -> std::optional<wire::AddressRange> {
        require(++moves <= 16);
        if (answers.below(8) == 0) return std::nullopt;
        return answers.get<wire::AddressRange>();
      });
  if (!agreed) {
    require(!agreed.error().message.empty());
    return 0;
  }
  require(space.base() != 0 && space.size() != 0 && space.base() + space.size() > space.base());
  use(space, answers);
  // Unmaps the addresses for the next input.
  munmap(reinterpret_cast<void*>(static_cast<uintptr_t>(space.base())), space.size());
  return 0;
}
