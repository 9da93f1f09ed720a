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

// No list lets connections to an unspecified or multicast address, and an IPv4 address is the same as IPv6.
void check_networks(const server::Networks& networks) {
  for (const char* const never : {"0.0.0.0", "224.0.0.1", "::", "ff02::1"}) {
    if (networks.contains(asio::ip::make_address(never))) std::abort();
  }
  for (const char* const four : {"192.0.2.1", "127.0.0.1", "169.254.169.254", "10.1.2.3"}) {
    const bool contained = networks.contains(asio::ip::make_address(four));
    if (contained && networks.none()) std::abort();
    if (contained != networks.contains(asio::ip::make_address(std::string("::ffff:") + four))) std::abort();
  }
  for (const char* const six : {"2001:db8::1", "::1", "fe80::1", "fd00::1"}) {
    if (networks.contains(asio::ip::make_address(six)) && networks.none()) std::abort();
  }
}

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
    for (const auto& scheduler : pool->schedulers) {
      const auto again = pool::parse_pool_address("pool://" + scheduler.text());
      if (!again || again->schedulers.size() != 1 || again->schedulers[0].text() != scheduler.text())
        std::abort();
    }
  }
  if (const auto etcd = scheduler::etcd::parse_address("etcd://" + text)) {
    if (etcd->endpoints.empty() || etcd->prefix.starts_with('/') || etcd->prefix.ends_with('/')) std::abort();
    static_cast<void>(scheduler::etcd::plaintext_member(*etcd));
  }
  if (const auto networks = server::Networks::parse(text)) check_networks(*networks);
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
