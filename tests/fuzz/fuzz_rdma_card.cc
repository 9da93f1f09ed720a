// Messages of a peer during the upgrade to rdma: its offer, its step results, the addresses of its queue
// pairs, and the counts of returned credits (rdma/credits.h).
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "rdma/credits.h"
#include "rdma/upgrade_messages.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

using namespace gpupool;
using fuzz::require;
using namespace gpupool::transport::rdma;

namespace {

// The text must be fit for log lines.
void check_words(const std::string& text) {
  require(text.size() < 256);
  for (const unsigned char c : text) require(c >= ' ' && c != 0x7f);
}

void check_address(const Address& address) {
  if (is_possible(address)) require(address.queue_pair != 0 && address.mtu >= 1 && address.mtu <= 5);
}

// A peer that returns more credits than were used is rejected, and the number of messages in flight never
// exceeds the peer's buffers.
void count_messages(fuzz::Input& input) {
  const uint32_t room = 1 + input.below(8);
  Credits credits(1 + input.below(8), room);
  uint32_t sent = 0, returned = 0, received = 0, consumed = 0;
  for (int steps = 0; !input.empty() && steps < 500; ++steps) {
    switch (input.below(4)) {
      case 0:
        require(credits.can_send_message() == (sent - returned < room));
        if (credits.can_send_message()) ++sent, credits.count_sent();
        break;
      case 1: {
        const uint32_t said = input.below(2) == 0 ? returned + input.below(8) : input.get<uint32_t>();
        const bool believable = ((said - returned) & kCountMask) <= sent - returned;
        require(credits.take_returned_count(said) == believable);
        if (!believable) return;
        returned += (said - returned) & kCountMask;
        break;
      }
      case 2:
        if (!credits.count_received()) return;
        ++received;
        break;
      default:
        if (consumed == received) break;
        ++consumed;
        credits.count_consumed();
        if (credits.return_is_due()) require(credits.next_returned_count() == (consumed & kCountMask));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool is_offer = input.below(4) != 3;
  auto offer = input.get<UpgradeOffer>();
  if (is_offer) offer.magic = kOfferMagic;
  if (const auto refusal = refusal_reason(offer)) {
    require(offer.magic == kOfferMagic &&
            (!refusal->empty() || (offer.version == kOfferVersion && offer.usable != 0)));
    check_words(*refusal);
  } else {
    require(offer.magic != kOfferMagic && !refusal.error().message.empty());
  }
  check_address(offer.stream);
  check_address(offer.direct);
  auto result = input.get<StepResult>();
  check_words(refusal_reason(result));
  require(refusal_reason(result).empty() == (result.good != 0));
  // A reason of this side fits whatever its length.
  StepResult my_result;
  UpgradeOffer my_offer;
  const std::string reason = input.text();
  set_reason(my_result, reason);
  set_reason(my_offer, reason);
  require(my_result.why_not[sizeof my_result.why_not - 1] == '\0' &&
          my_offer.why_not[sizeof my_offer.why_not - 1] == '\0');
  count_messages(input);
  return 0;
}
