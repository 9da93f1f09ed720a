// Messages of the switch from TCP to RDMA: each side sends a Card, and a Verdict after each step. They are sent as they are in memory. The peer is not
// trusted: its messages are checked here before a device uses anything of them. No state, any thread.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "protocol/wire/result.h"
#include "rdma/address.h"

namespace gpupool::transport::rdma {

constexpr uint32_t kCardMagic = 0x414d4452;  // "RDMA"
constexpr uint32_t kCardVersion = 1;

struct Card {
  uint32_t magic = kCardMagic;
  uint32_t version = kCardVersion;
  uint32_t usable = 0;
  uint32_t receives = 0;
  Address stream;
  Address direct;
  std::array<uint8_t, 16> manager_token{};
  uint16_t manager_port = 0;     // server: where its connection manager listens; 0: it does not
  uint16_t has_manager = 0;      // client
  char why_not[156] = "";
};
static_assert(sizeof(Card) == 256 && std::is_trivially_copyable_v<Card>);

struct Verdict {
  uint32_t good = 0;
  char why_not[156] = "";
};
static_assert(sizeof(Verdict) == 160 && std::is_trivially_copyable_v<Verdict>);

// This side's reason, as far as there is room.
void set_reason(Card& card, const std::string& why_not);
void set_reason(Verdict& verdict, const std::string& why_not);

// Why there will be no rdma with the side whose card this is, in characters that a log line may have; empty: it may be tried. ErrorCode::malformed: no card.
Result<std::string> refusal_of(const Card& theirs);
std::string refusal_of(const Verdict& theirs);

// True for the address of a queue pair that can exist.
bool is_possible(const Address& address);

}  // namespace gpupool::transport::rdma
