// What the other side of a connection says while both try to switch to rdma: its card, its verdicts, the addresses of its queue pairs, and how many messages it
// says it has had (rdma/credits.h).
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "rdma/card.h"
#include "rdma/credits.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

using namespace gpupool;
using fuzz::require;
using namespace gpupool::transport::rdma;

namespace {

// Goes into log lines.
void check_words(const std::string& text) {
  require(text.size() < 256);
  for (const unsigned char c : text) require(c >= ' ' && c != 0x7f);
}

void check_address(const Address& address) {
  if (is_possible(address)) require(address.queue_pair != 0 && address.mtu >= 1 && address.mtu <= 5);
}

// A peer that says it has had more than was sent is not believed, and never more is on its way than it has room for.
void count_messages(fuzz::Input& input) {
  const uint32_t room = 1 + input.below(8);
  Credits credits(1 + input.below(8), room);
  uint32_t sent = 0, returned = 0, received = 0, consumed = 0;
  for (int steps = 0; !input.empty() && steps < 500; ++steps) {
    switch (input.below(4)) {
      case 0:
        require(credits.may_send() == (sent - returned < room));
        if (credits.may_send()) ++sent, credits.has_sent();
        break;
      case 1: {
        const uint32_t said = input.below(2) == 0 ? returned + input.below(8) : input.get<uint32_t>();
        const bool believable = ((said - returned) & kCountMask) <= sent - returned;
        require(credits.hear(said) == believable);
        if (!believable) return;
        returned += (said - returned) & kCountMask;
        break;
      }
      case 2:
        if (!credits.has_received()) return;
        ++received;
        break;
      default:
        if (consumed == received) break;
        ++consumed;
        credits.has_consumed();
        if (credits.owes()) require(credits.tell() == (consumed & kCountMask));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool is_card = input.below(4) != 3;
  auto card = input.get<Card>();
  if (is_card) card.magic = kCardMagic;
  if (const auto refusal = refusal_of(card)) {
    require(card.magic == kCardMagic && (!refusal->empty() || (card.version == kCardVersion && card.usable != 0)));
    check_words(*refusal);
  } else {
    require(card.magic != kCardMagic && !refusal.error().message.empty());
  }
  check_address(card.stream);
  check_address(card.direct);
  auto verdict = input.get<Verdict>();
  check_words(refusal_of(verdict));
  require(refusal_of(verdict).empty() == (verdict.good != 0));
  // A reason of this side's fits whatever its length.
  Verdict my_verdict;
  Card my_card;
  const std::string reason = input.text();
  set_reason(my_verdict, reason);
  set_reason(my_card, reason);
  require(my_verdict.why_not[sizeof my_verdict.why_not - 1] == '\0' && my_card.why_not[sizeof my_card.why_not - 1] == '\0');
  count_messages(input);
  return 0;
}
