#include "rdma/card.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

#include "protocol/text/printable.h"

namespace gpupool::transport::rdma {
namespace {

template <size_t size>
void put_text(char (&to)[size], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), size - 1));
}

template <size_t size>
std::string peers_words(const char (&from)[size]) {
  return "the peer: " + printable({from, ::strnlen(from, size)});
}

}  // namespace

void set_reason(Card& card, const std::string& why_not) { put_text(card.why_not, why_not); }
void set_reason(Verdict& verdict, const std::string& why_not) { put_text(verdict.why_not, why_not); }

Result<std::string> refusal_of(const Card& theirs) {
  if (theirs.magic != kCardMagic) return Error{ErrorCode::malformed, "sent an invalid rdma offer"};
  if (theirs.version != kCardVersion) return std::string("the peer uses another version of the rdma protocol");
  return theirs.usable != 0 ? std::string() : peers_words(theirs.why_not);
}

std::string refusal_of(const Verdict& theirs) { return theirs.good != 0 ? std::string() : peers_words(theirs.why_not); }

bool is_possible(const Address& address) { return address.mtu >= IBV_MTU_256 && address.mtu <= IBV_MTU_4096 && address.queue_pair != 0; }

}  // namespace gpupool::transport::rdma
