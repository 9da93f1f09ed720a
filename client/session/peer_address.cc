#include "client/session/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace gpupool::client {
namespace {

std::optional<std::array<uint8_t, 16>> parse(const std::string& host) {
  std::array<uint8_t, 16> address{};
  if (::inet_pton(AF_INET6, host.c_str(), address.data()) == 1) return address;
  address.fill(0);
  address[10] = address[11] = 0xff;
  if (::inet_pton(AF_INET, host.c_str(), address.data() + 12) == 1) return address;
  return std::nullopt;
}

}  // namespace

std::optional<std::array<uint8_t, 16>> numeric_address(const std::string& peer, const std::string& host) {
  std::string reached = peer.substr(0, peer.rfind(':'));
  if (reached.size() > 2 && reached.front() == '[' && reached.back() == ']')
    reached = reached.substr(1, reached.size() - 2);
  if (const auto address = parse(reached)) return address;
  return parse(host);
}

}  // namespace gpupool::client
