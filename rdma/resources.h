// What the connections of one session share (SessionResources): the device with its protection domain, to
// which all keys belong, and the transfers by these keys. Made by the session's first connection; does not
// change. Any thread.
#pragma once
#include <cstdint>
#include <memory>

#include "protocol/transport/transport.h"
#include "rdma/direct_transfers.h"
#include "rdma/domain.h"

namespace gpupool::transport::rdma {

struct Resources final : SessionResources {
  Resources(std::shared_ptr<Domain> domain, std::shared_ptr<DirectTransfers> transfers, uint32_t peer)
      : domain(std::move(domain)), transfers(std::move(transfers)), peer_domain(peer) {}
  const std::shared_ptr<Domain> domain;
  const std::shared_ptr<DirectTransfers> transfers;  // null if the peer has none
  const uint32_t peer_domain;                        // UpgradeOffer::domain
};

}  // namespace gpupool::transport::rdma
