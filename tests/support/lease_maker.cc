#include "tests/support/lease_maker.h"

#include <stdexcept>

namespace gpupool::testing {

std::chrono::milliseconds time_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
}

LeaseMaker::LeaseMaker(std::string node) : node_(std::move(node)), key_(*lease::SigningKey::make()) {
  folder_.write("public.pem", key_.public_key().pem());
}

lease::Lease LeaseMaker::lease(const std::vector<std::string>& gpus, uint32_t compute_milli,
                               uint64_t memory_bytes) {
  lease::Lease lease;
  std::string id(lease::kIdBytes, 'x');
  id[0] = static_cast<char>(++made_);
  lease.set_id(id);
  lease.set_serial(1);
  lease.set_tenant("physics");
  lease.set_node(node_);
  lease.set_issued_ms(time_now().count());
  lease.set_expires_ms(time_now().count() + 600'000);
  lease.set_priority(lease::NORMAL);
  for (const std::string& gpu : gpus) {
    lease::Share& share = *lease.add_shares();
    share.set_gpu_uuid(gpu);
    share.set_compute_milli(compute_milli);
    share.set_memory_bytes(memory_bytes);
  }
  return lease;
}

std::string LeaseMaker::token(const lease::Lease& lease) const {
  auto token = lease::make_token(lease, key_);
  if (!token) throw std::runtime_error(token.error().message);
  return *token;
}

}  // namespace gpupool::testing
