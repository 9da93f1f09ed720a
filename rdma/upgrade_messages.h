// Messages of the upgrade from TCP to RDMA: each side sends an UpgradeOffer, and a StepResult after each
// step. They are sent as they lie in memory. The peer is not trusted: its messages are checked here before a
// device uses anything in them. No state, any thread.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "common/result.h"
#include "rdma/address.h"

namespace gpupool::transport::rdma {

constexpr uint32_t kOfferMagic = 0x414d4452;  // "RDMA"
constexpr uint32_t kOfferVersion = 1;

struct UpgradeOffer {
  uint32_t magic = kOfferMagic;
  uint32_t version = kOfferVersion;
  uint32_t usable = 0;                      // 1: this side can use rdma; 0: `why_not` says why it cannot
  uint32_t receives = 0;                    // data messages that the peer may have in flight
  Address stream;                           // of the stream's queue pair
  Address direct;                           // of the DataChannel's queue pair; none for bulk connections
  std::array<uint8_t, 16> manager_token{};  // server: the client shows it to the server's connection manager
  uint16_t manager_port = 0;                // server: port of its connection manager; 0: there is none
  uint16_t has_manager = 0;                 // client: 1 if it has a connection manager
  char why_not[152] = "";
  uint32_t domain = 0;  // Domain::number(); 0: a version that cannot replace broken connections
};
static_assert(sizeof(UpgradeOffer) == 256 && std::is_trivially_copyable_v<UpgradeOffer>);

struct StepResult {
  uint32_t good = 0;
  char why_not[156] = "";
};
static_assert(sizeof(StepResult) == 160 && std::is_trivially_copyable_v<StepResult>);

// Stores this side's reason, cut to the space that there is.
void set_reason(UpgradeOffer& offer, const std::string& why_not);
void set_reason(StepResult& result, const std::string& why_not);

// Returns why the peer cannot use rdma, as printable text; empty: rdma may be tried. ErrorCode::malformed:
// not an UpgradeOffer.
Result<std::string> refusal_reason(const UpgradeOffer& theirs);
std::string refusal_reason(const StepResult& theirs);

// True for the address of a queue pair that can exist.
bool is_possible(const Address& address);

}  // namespace gpupool::transport::rdma
