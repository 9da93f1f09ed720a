#include "protocol/transport/transport.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "protocol/transport/deadline.h"
#include "protocol/transport/gather.h"

namespace gpupool::transport {
namespace {

Error bad_endpoint(const std::string& text, const std::string& why) {
  return {ErrorCode::invalid, "bad address '" + text + "': " + why +
                                  "; write it as tcp://HOST:PORT, tcp://[IPV6]:PORT, tls://HOST:PORT, "
                                  "rdma://HOST:PORT, shm:///PATH or shm://@NAME"};
}

// Rejects blanks and control characters, because addresses go into log lines.
bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c != 0x7f; });
}

}  // namespace

std::string Endpoint::text() const {
  if (scheme == "shm") return scheme + "://" + host;
  const bool brackets = host.find(':') != std::string::npos;
  return scheme + "://" + (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Endpoint> Endpoint::parse(const std::string& text) {
  const size_t colon = text.find("://");
  if (colon == std::string::npos || colon == 0) return bad_endpoint(text, "the transport is missing");
  if (!has_transport(text)) return bad_endpoint(text, "unknown transport " + text.substr(0, colon + 3));
  Endpoint endpoint;
  endpoint.scheme = text.substr(0, colon);
  std::string rest = text.substr(colon + 3);
  if (endpoint.scheme == "shm") {
    if (rest.size() < 2 || (rest.front() != '/' && rest.front() != '@') || !is_printable(rest)) {
      return bad_endpoint(text, "must be the path of a socket, or @ and a name");
    }
    endpoint.host = rest;
    return endpoint;
  }
  if (rest.find('?') != std::string::npos) {
    return bad_endpoint(
        text,
        "options after '?' are only valid for pool:// addresses, for example pool://HOST:9800?gpus=2; "
        "a server always gives all its GPUs");
  }
  size_t host_end = 0;
  if (!rest.empty() && rest.front() == '[') {
    host_end = rest.find(']');
    if (host_end == std::string::npos) return bad_endpoint(text, "']' is missing");
    endpoint.host = rest.substr(1, host_end - 1);
    ++host_end;
  } else {
    host_end = rest.find(':');
    if (host_end == std::string::npos) return bad_endpoint(text, "the port is missing");
    endpoint.host = rest.substr(0, host_end);
    if (rest.find(':', host_end + 1) != std::string::npos)
      return bad_endpoint(text, "an IPv6 address needs brackets");
  }
  if (endpoint.host.empty()) return bad_endpoint(text, "the host is missing");
  if (!is_printable(endpoint.host) || endpoint.host.find_first_of("/[]") != std::string::npos) {
    return bad_endpoint(text, "not a host name");
  }
  if (host_end >= rest.size() || rest[host_end] != ':') return bad_endpoint(text, "the port is missing");
  const char* first = rest.data() + host_end + 1;
  const char* last = rest.data() + rest.size();
  const auto [end, status] = std::from_chars(first, last, endpoint.port);
  if (first == last || status != std::errc() || end != last) {
    return bad_endpoint(text, "the port must be a number from 0 to 65535");
  }
  return endpoint;
}

Result<std::vector<Endpoint>> Endpoint::parse_list(const std::string& text) {
  std::vector<Endpoint> endpoints;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    auto endpoint = parse(text.substr(at, comma - at));
    if (!endpoint) return endpoint.error();
    const std::string name = endpoint->text();
    if (std::any_of(endpoints.begin(), endpoints.end(),
                    [&](const Endpoint& known) { return known.text() == name; })) {
      return Error{ErrorCode::invalid, "duplicate server " + name};
    }
    endpoints.push_back(std::move(*endpoint));
    at = comma + 1;
  }
  return endpoints;
}

Result<void> Connection::upgrade(Side, Deadline) {
  return {};
}

Result<void> Connection::send_descriptor(int, Deadline) {
  return Error{ErrorCode::invalid, "the connection to " + peer() + " cannot pass descriptors"};
}

Result<int> Connection::receive_descriptor(Deadline) {
  return Error{ErrorCode::invalid, "the connection to " + peer() + " cannot pass descriptors"};
}

Result<void> send_all(Connection& connection, std::span<const iovec> buffers, Deadline deadline,
                      Clock::duration* blocked) {
  std::vector<iovec> all(buffers.begin(), buffers.end());
  std::span<iovec> rest(all);
  for (drop_sent(rest, 0); !rest.empty();) {
    const auto sent = connection.send_some(rest);
    if (!sent) return sent.error();
    if (*sent == 0) {
      const auto since = blocked ? Clock::now() : Clock::time_point{};
      const auto ready = connection.wait(false, true, deadline);
      if (blocked) *blocked += Clock::now() - since;
      if (!ready) return ready.error();
      if (*ready == Connection::Ready::none && passed(deadline)) {
        return Error{ErrorCode::lost, "sending to " + connection.peer() + " timed out"};
      }
      continue;
    }
    drop_sent(rest, *sent);
  }
  return {};
}

Result<void> receive_exact(Connection& connection, std::span<std::byte> buffer, Deadline deadline) {
  const size_t wanted = buffer.size();
  while (!buffer.empty()) {
    const auto received = connection.receive_some(buffer);
    if (!received) {
      if (received.error().code != ErrorCode::closed || buffer.size() == wanted) return received.error();
      return Error{ErrorCode::lost, connection.peer() + " closed the connection in the middle of a message"};
    }
    if (*received == 0) {
      const auto ready = connection.wait(true, false, deadline);
      if (!ready) return ready.error();
      if (*ready == Connection::Ready::none && passed(deadline)) {
        return Error{ErrorCode::lost, "timed out waiting for " + connection.peer()};
      }
    }
    buffer = buffer.subspan(*received);
  }
  return {};
}

}  // namespace gpupool::transport
