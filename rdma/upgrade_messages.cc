#include "rdma/upgrade_messages.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

#include "common/text/printable.h"

namespace gpupool::transport::rdma {
namespace {

template <size_t size>
void put_text(char (&to)[size], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), size - 1));
}

template <size_t size>
std::string peer_reason(const char (&from)[size]) {
  return "the peer: " + printable({from, ::strnlen(from, size)});
}

}  // namespace

void set_reason(UpgradeOffer& offer, const std::string& why_not) {
  put_text(offer.why_not, why_not);
}
void set_reason(StepResult& result, const std::string& why_not) {
  put_text(result.why_not, why_not);
}

Result<std::string> refusal_reason(const UpgradeOffer& theirs) {
  if (theirs.magic != kOfferMagic) return Error{ErrorCode::malformed, "sent an invalid rdma offer"};
  if (theirs.version != kOfferVersion)
    return std::string("the peer uses another version of the rdma protocol");
  return theirs.usable != 0 ? std::string() : peer_reason(theirs.why_not);
}

std::string refusal_reason(const StepResult& theirs) {
  return theirs.good != 0 ? std::string() : peer_reason(theirs.why_not);
}

bool is_possible(const Address& address) {
  return address.mtu >= IBV_MTU_256 && address.mtu <= IBV_MTU_4096 && address.queue_pair != 0;
}

}  // namespace gpupool::transport::rdma
