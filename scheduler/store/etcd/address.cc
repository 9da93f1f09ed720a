#include "scheduler/store/etcd/address.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "protocol/transport/loopback.h"

namespace gpupool::scheduler::etcd {
namespace {

constexpr std::string_view kPlain = "etcd://", kTls = "etcds://";
constexpr const char* kDefaultPort = ":2379";
constexpr size_t kLongestPrefix = 256;

// Returns HOST:PORT for HOST, HOST:PORT, [IPV6] or [IPV6]:PORT; empty if `text` is malformed.
std::string endpoint(const std::string& text) {
  const size_t bracket = text.rfind(']');
  if ((text.front() == '[') != (bracket != text.npos)) return "";
  const size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  const std::string host = text.substr(0, colon);
  if (host.empty() || host == "[]" || host.find_first_of("@? ") != host.npos) return "";
  if (colon == text.npos) return text + kDefaultPort;
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, port);
  return read.ec == std::errc() && read.ptr == end && port != 0 ? text : "";
}

}  // namespace

bool is_address(const std::string& text) {
  return text.starts_with(kPlain) || text.starts_with(kTls);
}

Result<Address> parse_address(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    return Error{ErrorCode::invalid, "'" + text + "': " + why};
  };
  Address out;
  out.tls = text.starts_with(kTls);
  const std::string rest = text.substr(out.tls ? kTls.size() : kPlain.size());
  const size_t slash = rest.find('/');
  const std::string hosts = rest.substr(0, slash);
  for (size_t at = 0; at <= hosts.size();) {
    const size_t end = std::min(hosts.find(',', at), hosts.size());
    const std::string part = hosts.substr(at, end - at);
    const std::string found = part.empty() ? "" : endpoint(part);
    if (found.empty())
      return wrong("'" + part +
                   "' is not HOST:PORT of an etcd member; use etcd://HOST:PORT,HOST:PORT/PREFIX");
    out.endpoints.push_back(found);
    at = end + 1;
  }
  if (slash == rest.npos) return out;
  std::string prefix = rest.substr(slash + 1);
  while (prefix.ends_with('/')) prefix.pop_back();
  if (prefix.starts_with('/') || prefix.size() > kLongestPrefix)
    return wrong("the prefix must not begin with a slash or exceed 256 characters");
  if (!prefix.empty()) out.prefix = std::move(prefix);
  return out;
}

std::string plaintext_member(const Address& address) {
  if (address.tls) return "";
  const auto found =
      std::find_if_not(address.endpoints.begin(), address.endpoints.end(), transport::connects_to_loopback);
  return found == address.endpoints.end() ? "" : *found;
}

}  // namespace gpupool::scheduler::etcd
