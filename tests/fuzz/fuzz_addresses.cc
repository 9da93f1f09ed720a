// Fuzzes addresses from users and servers: of servers, lists of servers, pools, etcd clusters, and networks.
// An accepted address must be equal after it is formatted and parsed again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "protocol/scheduler/address.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/transport/transport.h"
#include "scheduler/store/etcd/address.h"
#include "server/sockets/networks.h"

using namespace gpupool;

namespace {

void check(const std::string& text) {
  if (const auto endpoint = transport::Endpoint::parse(text)) {
    const auto again = transport::Endpoint::parse(endpoint->text());
    if (!again || again->host != endpoint->host || again->port != endpoint->port ||
        again->scheme != endpoint->scheme)
      std::abort();
  }
  if (const auto list = transport::Endpoint::parse_list(text); list && list->empty()) std::abort();
  if (const auto pool = pool::parse_pool_address(text)) {
    if (pool->schedulers.empty() || pool->request.gpus() == 0) std::abort();
  }
  if (const auto etcd = scheduler::etcd::parse_address("etcd://" + text)) {
    if (etcd->endpoints.empty() || etcd->prefix.starts_with('/') || etcd->prefix.ends_with('/')) std::abort();
  }
  if (const auto networks = server::Networks::parse(text)) {
    if (networks->none() && networks->contains(asio::ip::make_address_v4(0xc0000201u))) std::abort();
  }
  for (const transport::RdmaSetting& setting : transport::rdma_settings()) {
    transport::RdmaOptions options;
    static_cast<void>(setting.read(text, options));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check(text);
  for (const char* const scheme : {"tcp://", "shm://", "pool://"}) check(scheme + text);
  return 0;
}
