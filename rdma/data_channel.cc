#include "rdma/data_channel.h"

#include <utility>

namespace gpupool::transport::rdma {

Result<std::unique_ptr<DataChannel>> DataChannel::make(std::shared_ptr<Domain> domain, Side side) {
  const bool client = side == Side::client;
  auto pair = QueuePair::make(
      std::move(domain), {.sends = client ? 1 : static_cast<uint32_t>(DirectMemory::kMaxPendingTransfers),
                          .remote_access = client ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0});
  if (!pair) return pair.error();
  return std::make_unique<DataChannel>(std::move(*pair));
}

Result<void> DataChannel::post(const DirectMemory::Transfer& transfer, ibv_wr_opcode opcode) {
  ibv_sge local{reinterpret_cast<uintptr_t>(transfer.local), transfer.bytes, transfer.local_key};
  ibv_send_wr request{};
  request.wr_id = transfer.cookie;
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = transfer.remote;
  request.wr.rdma.rkey = transfer.remote_key;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_->get(), &request, &bad) == 0) return {};
  return Error{ErrorCode::unavailable, "ibv_post_send failed for a direct transfer"};
}

}  // namespace gpupool::transport::rdma
